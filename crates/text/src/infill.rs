//! Prompts with a gap: what comes before, what comes after, and the model fills the middle.
//!
//! Models that were trained so have three tokens that mark the parts, and read `prefix token, text
//! before, suffix token, text after, middle token`. A GGUF file may say which they are; otherwise
//! there is no rule for what they are called, so the families' names are listed, and of a vocabulary
//! with several sets the first one counts. Sources: the model cards of Qwen2.5-Coder, StarCoder,
//! DeepSeek-Coder and Code Llama; the keys of GGUF files as llama.cpp writes and reads them.

use crate::token_matcher::MatchedToken;
use mini_infer_core::TokenId;

/// The tokens that mark the parts of a prompt with a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InfillTokens {
    /// Comes before the text before the gap.
    pub(crate) prefix: TokenId,
    /// Comes before the text after the gap.
    pub(crate) suffix: TokenId,
    /// Ends the prompt; what fills the gap follows.
    pub(crate) middle: TokenId,
    /// Ends what fills the gap, where that is not the token that ends every text.
    pub(crate) end: Option<TokenId>,
}

/// The marks that a checkpoint names by their ids, as far as it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamedInfillTokens {
    /// Comes before the text before the gap.
    pub prefix: Option<TokenId>,
    /// Comes before the text after the gap.
    pub suffix: Option<TokenId>,
    /// Ends the prompt.
    pub middle: Option<TokenId>,
}

/// Names of the marks of one family.
struct InfillNames {
    prefix: &'static str,
    suffix: &'static str,
    middle: &'static str,
    end: Option<&'static str>,
}

const FAMILIES: [InfillNames; 5] = [
    // Qwen2.5-Coder, and the vocabulary of all Qwen2.5 and Qwen3.
    InfillNames {
        prefix: "<|fim_prefix|>",
        suffix: "<|fim_suffix|>",
        middle: "<|fim_middle|>",
        end: None,
    },
    // StarCoder and StarCoder2.
    InfillNames {
        prefix: "<fim_prefix>",
        suffix: "<fim_suffix>",
        middle: "<fim_middle>",
        end: None,
    },
    // SantaCoder.
    InfillNames {
        prefix: "<fim-prefix>",
        suffix: "<fim-suffix>",
        middle: "<fim-middle>",
        end: None,
    },
    // DeepSeek-Coder and DeepSeek-Coder-V2.
    InfillNames {
        prefix: "<｜fim▁begin｜>",
        suffix: "<｜fim▁hole｜>",
        middle: "<｜fim▁end｜>",
        end: None,
    },
    // Code Llama.
    InfillNames {
        prefix: "▁<PRE>", suffix: "▁<SUF>", middle: "▁<MID>", end: Some("▁<EOT>")
    },
];

impl InfillTokens {
    /// Returns the marks that the checkpoint names. Where it does not name all of them, they are
    /// those of a family that the vocabulary's control and added tokens hold all marks of.
    pub(crate) fn find(named: NamedInfillTokens, tokens: &[MatchedToken]) -> Option<Self> {
        let id = |name: &str| tokens.iter().find(|token| token.text == name).map(|token| token.id);
        let of_family = FAMILIES.iter().find_map(|names| {
            Some(Self {
                prefix: id(names.prefix)?,
                suffix: id(names.suffix)?,
                middle: id(names.middle)?,
                end: names.end.and_then(id),
            })
        });
        match named {
            NamedInfillTokens {
                prefix: Some(prefix),
                suffix: Some(suffix),
                middle: Some(middle),
            } => {
                // A family's end belongs to its own marks.
                let is_same = |family: &Self| family.middle == middle;
                let end = of_family.filter(is_same).and_then(|family| family.end);
                Some(Self { prefix, suffix, middle, end })
            }
            NamedInfillTokens { .. } => of_family,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GgufVocabulary, Tokenizer};

    /// One token for each byte, and from 256 on these control tokens.
    fn tokenizer(control: &[&str], bos: Option<TokenId>) -> Tokenizer {
        named_tokenizer(control, bos, NamedInfillTokens::default())
    }

    fn named_tokenizer(
        control: &[&str],
        bos: Option<TokenId>,
        infill: NamedInfillTokens,
    ) -> Tokenizer {
        let mut tokens: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
        tokens.extend(control.iter().map(|name| (*name).to_owned()));
        let mut token_types = vec![6; 256];
        token_types.extend(control.iter().map(|_| 3));
        Tokenizer::from_gguf(GgufVocabulary {
            model: "llama".to_owned(),
            scores: vec![0.0; tokens.len()],
            tokens,
            token_types,
            bos,
            add_bos: Some(bos.is_some()),
            add_space_prefix: Some(false),
            infill,
            ..GgufVocabulary::default()
        })
        .unwrap()
    }

    #[test]
    fn the_marks_stand_around_the_text_of_every_family() {
        for InfillNames { prefix, suffix, middle, end } in FAMILIES {
            let all = [suffix, "<s>", middle, prefix, end.unwrap_or("</x>")];
            let tokenizer = tokenizer(&all, Some(257));
            let ids = tokenizer.encode_infill("ab", "c").unwrap().unwrap();
            assert_eq!(ids, [257, 259, 97, 98, 256, 99, 258], "{prefix}");
            assert_eq!(tokenizer.infill_end(), end.map(|_| 260));
        }
    }

    #[test]
    fn marks_that_the_file_names_come_before_those_of_a_family() {
        let named = |prefix, suffix, middle| NamedInfillTokens { prefix, suffix, middle };
        let ids = |control: &[&str], infill| {
            let tokenizer = named_tokenizer(control, None, infill);
            (tokenizer.encode_infill("a", "b").unwrap(), tokenizer.infill_end())
        };
        let own = named(Some(258), Some(256), Some(257));
        let unknown = ["[suf]", "[mid]", "[pre]"];
        assert_eq!(ids(&unknown, own), (Some(vec![258, 97, 256, 98, 257]), None));
        let family = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"];
        assert_eq!(ids(&family, own), (Some(vec![258, 97, 256, 98, 257]), None));
        let same = named(Some(256), Some(257), Some(258));
        assert_eq!(ids(&family, same), (Some(vec![256, 97, 257, 98, 258]), Some(259)));
        let some = named(Some(258), None, Some(257));
        assert_eq!(ids(&family, some), (Some(vec![256, 97, 257, 98, 258]), Some(259)));
        assert_eq!(ids(&unknown, some), (None, None));
    }

    #[test]
    fn markup_in_the_texts_stays_text() {
        let tokenizer = tokenizer(&["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], None);
        let ids = tokenizer.encode_infill("<fim_middle>", "<fim_suffix>").unwrap().unwrap();
        let num_marks = ids.iter().filter(|&&id| id >= 256).count();
        assert_eq!((num_marks, ids.len()), (3, 3 + 12 + 12));
    }

    #[test]
    fn vocabularies_without_all_marks_cannot_fill_gaps() {
        let two = tokenizer(&["<fim_prefix>", "<fim_suffix>"], None);
        assert_eq!(two.encode_infill("a", "b").unwrap(), None);
    }
}
