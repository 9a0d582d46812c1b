//! Parts of a whole.

/// A part of a whole, as in "waste is this share of what is allocated".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ratio {
    /// At most the whole.
    pub(crate) part: u64,
    /// May be 0, and then so is the part.
    pub(crate) whole: u64,
}

impl Ratio {
    /// Returns the ratio, `0..=1`; that of nothing to nothing is 0.
    pub(crate) fn value(self) -> f64 {
        if self.whole == 0 {
            return 0.0;
        }
        self.part as f64 / self.whole as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_is_a_number() {
        assert_eq!(Ratio { part: 0, whole: 0 }.value(), 0.0);
        assert_eq!(Ratio { part: 1, whole: 4 }.value(), 0.25);
    }
}
