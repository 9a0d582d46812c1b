//! Writes safetensors files for tests, also wrong ones.

use serde_json::{Value, json};

/// A file whose header is put together tensor by tensor.
#[derive(Clone, Default)]
pub(crate) struct Builder {
    header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl Builder {
    /// Adds a tensor of zeros behind the last one.
    pub(crate) fn zeros(self, name: &str, dtype: &str, shape: &[usize]) -> Self {
        let element_bytes = if dtype == "F32" { 4 } else { 2 };
        let bytes = vec![0; shape.iter().product::<usize>() * element_bytes];
        self.tensor(name, dtype, shape, &bytes)
    }

    /// Adds a tensor behind the last one.
    pub(crate) fn tensor(mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) -> Self {
        let start = self.data.len();
        self.data.extend_from_slice(bytes);
        self.entry(name, dtype, shape, [start, start + bytes.len()])
    }

    /// Adds an entry to the header alone.
    pub(crate) fn entry(
        mut self,
        name: &str,
        dtype: &str,
        shape: &[usize],
        offsets: [usize; 2],
    ) -> Self {
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        self.header.insert(name.to_owned(), entry);
        self
    }

    /// Adds bytes to the data alone.
    pub(crate) fn data(mut self, num_bytes: usize) -> Self {
        self.data.resize(self.data.len() + num_bytes, 0);
        self
    }

    pub(crate) fn build(&self) -> Vec<u8> {
        file(&Value::Object(self.header.clone()).to_string(), &self.data)
    }
}

/// Returns a file with any text as its header.
pub(crate) fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}
