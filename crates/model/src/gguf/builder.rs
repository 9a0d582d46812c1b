//! GGUF files made by hand, for tests.

/// Builds a GGUF file field by field.
#[derive(Clone, Default)]
pub(crate) struct Builder {
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

/// A string: length and bytes.
pub(crate) fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// An array of `count` elements of type `element_type`.
pub(crate) fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&element_type.to_le_bytes()[..], &count.to_le_bytes(), elements].concat()
}

impl Builder {
    pub(crate) fn pair(mut self, key: &str, value_type: u32, value: &[u8]) -> Self {
        self.pairs.push([&string(key)[..], &value_type.to_le_bytes(), value].concat());
        self
    }

    pub(crate) fn tensor(mut self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Self {
        let mut entry = string(name);
        entry.extend(u32::try_from(dimensions.len()).expect("a few dimensions").to_le_bytes());
        dimensions.iter().for_each(|dimension| entry.extend(dimension.to_le_bytes()));
        entry.extend(kind.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    pub(crate) fn data(mut self, len: usize) -> Self {
        self.data = (0..len).map(|i| i.to_le_bytes()[0]).collect();
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        let counts = [self.tensors.len() as u64, self.pairs.len() as u64].map(u64::to_le_bytes);
        let mut file = [&b"GGUF"[..], &3_u32.to_le_bytes(), &counts.concat()].concat();
        self.pairs.iter().chain(&self.tensors).for_each(|part| file.extend(part));
        file.resize(file.len().next_multiple_of(32), 0);
        file.extend(&self.data);
        file
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.pair(key, 8, &string(value))
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.pair(key, 6, &value.to_le_bytes())
    }

    /// Removes a metadata pair.
    pub(crate) fn without(mut self, key: &str) -> Self {
        let start = string(key);
        self.pairs.retain(|pair| !pair.starts_with(&start));
        self
    }
}
