//! The ways to manage KV memory that are compared.
//!
//! The contiguous ones are those of the PagedAttention paper (Kwon et al., SOSP 2023, section 6.1,
//! there called Orca with max, pow2 and oracle lengths): one piece of memory per sequence from a
//! buddy allocator, for as many tokens as the allocator believes the sequence will have.

use crate::SimulateError;
use mini_infer_core::{BlockSize, PrefixCaching};
use std::fmt;

/// One way to manage KV memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// Every sequence reserves `max_model_len` tokens.
    ContiguousMax,
    /// Every sequence reserves its prompt and the next power of two of its output.
    ContiguousPow2,
    /// Every sequence reserves its true length, which nobody knows in advance.
    ContiguousOracle,
    /// Blocks on demand.
    Paged {
        /// Tokens per block.
        block_size: BlockSize,
        /// Whether prompts that begin alike share blocks.
        prefix_caching: PrefixCaching,
    },
}

impl Allocator {
    /// Returns all that are compared, in the order of reports.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let off = PrefixCaching::Off;
        let mut all = vec![Self::ContiguousMax, Self::ContiguousPow2, Self::ContiguousOracle];
        let block_sizes = [8, 16, 32, 64].into_iter().filter_map(|size| BlockSize::new(size).ok());
        all.extend(block_sizes.map(|block_size| Self::Paged { block_size, prefix_caching: off }));
        all.push(Self::Paged { block_size: BlockSize::DEFAULT, prefix_caching: PrefixCaching::On });
        all
    }

    /// Reads `all`, one name, or several with commas between them.
    ///
    /// # Errors
    /// When a name is none of [`Self::all`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, SimulateError> {
        let mut chosen: Vec<Self> = Vec::new();
        for name in text.split(',').map(str::trim) {
            let is_meant = |known: &Self| name == "all" || known.to_string() == name;
            let named: Vec<Self> = Self::all().into_iter().filter(is_meant).collect();
            if named.is_empty() {
                return Err(SimulateError::UnknownAllocator { got: name.to_owned() });
            }
            chosen.extend(named);
        }
        let mut seen = Vec::new();
        chosen.retain(|allocator| {
            let is_first = !seen.contains(allocator);
            seen.push(*allocator);
            is_first
        });
        Ok(chosen)
    }

    /// Returns the size of the blocks that memory is counted in.
    pub(crate) fn block_size(self) -> BlockSize {
        match self {
            Self::Paged { block_size, .. } => block_size,
            Self::ContiguousMax | Self::ContiguousPow2 | Self::ContiguousOracle => {
                BlockSize::DEFAULT
            }
        }
    }

    /// Tells whether prompts that begin alike share blocks.
    pub(crate) fn prefix_caching(self) -> PrefixCaching {
        match self {
            Self::Paged { prefix_caching, .. } => prefix_caching,
            Self::ContiguousMax | Self::ContiguousPow2 | Self::ContiguousOracle => {
                PrefixCaching::Off
            }
        }
    }
}

impl fmt::Display for Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContiguousMax => f.pad("contiguous-max"),
            Self::ContiguousPow2 => f.pad("contiguous-pow2"),
            Self::ContiguousOracle => f.pad("contiguous-oracle"),
            Self::Paged { block_size, prefix_caching } => {
                let shared = match prefix_caching {
                    PrefixCaching::On => "-shared",
                    PrefixCaching::Off => "",
                };
                f.pad(&format!("paged-{}{shared}", block_size.tokens()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &str) -> Vec<String> {
        Allocator::parse_list(list).unwrap().iter().map(Allocator::to_string).collect()
    }

    #[test]
    fn all_are_known_by_their_names_and_listed_once() {
        let all = names("all");
        assert_eq!(
            all,
            [
                "contiguous-max",
                "contiguous-pow2",
                "contiguous-oracle",
                "paged-8",
                "paged-16",
                "paged-32",
                "paged-64",
                "paged-16-shared"
            ]
        );
        assert_eq!(names("paged-16,all,paged-8").len(), all.len());
        assert_eq!(names("paged-64, contiguous-max,paged-64"), ["paged-64", "contiguous-max"]);
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let message = Allocator::parse_list("paged-16,paged-7").unwrap_err().to_string();
        assert!(message.contains("`paged-7`") && message.contains("paged-16-shared and all"));
    }
}
