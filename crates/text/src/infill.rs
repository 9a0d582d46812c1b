//! Prompts with a gap: what comes before, what comes after, and the model fills the middle.
//!
//! Models that were trained so have three tokens that mark the parts, and read `prefix token, text
//! before, suffix token, text after, middle token`. There is no rule for what they are called, so
//! the families' names are listed; of a vocabulary with several sets, the first one counts. Sources:
//! the model cards of Qwen2.5-Coder, StarCoder, DeepSeek-Coder and Code Llama.

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
    /// Finds the marks among the control and added tokens of a vocabulary.
    pub(crate) fn find(tokens: &[MatchedToken]) -> Option<Self> {
        let id = |name: &str| tokens.iter().find(|token| token.text == name).map(|token| token.id);
        FAMILIES.iter().find_map(|names| {
            Some(Self {
                prefix: id(names.prefix)?,
                suffix: id(names.suffix)?,
                middle: id(names.middle)?,
                end: names.end.and_then(id),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GgufVocabulary, Tokenizer};

    /// One token for each byte, and from 256 on these control tokens.
    fn tokenizer(control: &[&str], bos: Option<TokenId>) -> Tokenizer {
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
