//! How byte-level checkpoints cut text into words before merging, by `tokenizer.ggml.pre`.
//!
//! GGUF stores a name where `tokenizer.json` stores the rules, so the rules are a table here. A
//! wrong rule changes ids silently; therefore only names whose rules are known for certain have an
//! entry, and any other name is an error. Sources: the published `tokenizer.json` of each model
//! family, and the names that llama.cpp's converter writes.

use crate::TokenizerError;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// One entry of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreTokenizerRule {
    name: &'static str,
    words: Words,
    normal_form: NormalForm,
    /// A word that is a token is taken whole, without merging towards it.
    pub(crate) whole_words: bool,
    /// The prompt begins with BOS unless the file says otherwise.
    pub(crate) adds_bos: bool,
}

#[derive(Clone, Copy, Debug)]
enum Words {
    /// GPT-2's pattern, which the `tokenizers` crate has built in.
    Gpt2,
    /// Each digit alone, then GPT-2's pattern.
    DigitsThenGpt2,
    /// A pattern whose matches are the words.
    Pattern(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum NormalForm {
    AsIs,
    Nfc,
}

/// Llama 3: contractions of any case, digits in threes.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 2 to 3: as Llama 3, but each digit alone.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen 3.5: as Qwen 2, with combining marks in words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's Tekken: words split where case changes.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// OpenAI's o200k: as Tekken, with contractions, digits in threes.
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const fn rule(name: &'static str, words: Words) -> PreTokenizerRule {
    PreTokenizerRule {
        name,
        words,
        normal_form: NormalForm::AsIs,
        whole_words: false,
        adds_bos: false,
    }
}

const fn nfc(mut rule: PreTokenizerRule) -> PreTokenizerRule {
    rule.normal_form = NormalForm::Nfc;
    rule
}

const fn whole_words_and_bos(mut rule: PreTokenizerRule) -> PreTokenizerRule {
    rule.whole_words = true;
    rule.adds_bos = true;
    rule
}

const RULES: &[PreTokenizerRule] = &[
    rule("default", Words::Gpt2),
    rule("gpt-2", Words::Gpt2),
    rule("mpt", Words::Gpt2),
    rule("olmo", Words::Gpt2),
    rule("smollm", Words::DigitsThenGpt2),
    rule("starcoder", Words::DigitsThenGpt2),
    rule("refact", Words::DigitsThenGpt2),
    whole_words_and_bos(rule("llama-bpe", Words::Pattern(LLAMA3))),
    whole_words_and_bos(rule("llama3", Words::Pattern(LLAMA3))),
    whole_words_and_bos(rule("llama-v3", Words::Pattern(LLAMA3))),
    rule("dbrx", Words::Pattern(LLAMA3)),
    rule("smaug-bpe", Words::Pattern(LLAMA3)),
    rule("glm4", Words::Pattern(LLAMA3)),
    nfc(rule("qwen2", Words::Pattern(QWEN2))),
    nfc(rule("qwen35", Words::Pattern(QWEN35))),
    nfc(rule("deepseek-r1-qwen", Words::Pattern(QWEN2))),
    whole_words_and_bos(rule("tekken", Words::Pattern(TEKKEN))),
    rule("gpt-4o", Words::Pattern(GPT4O)),
];

impl PreTokenizerRule {
    /// Finds the rule for a `tokenizer.ggml.pre`.
    pub(crate) fn find(name: Option<&str>) -> Result<Self, TokenizerError> {
        let found = RULES.iter().find(|rule| Some(rule.name) == name);
        found.copied().ok_or_else(|| TokenizerError::UnknownPreTokenizer {
            got: name.map(str::to_owned),
            supported: RULES.iter().map(|rule| rule.name).collect(),
        })
    }

    /// Returns the normalizer that runs before the words are cut.
    pub(crate) fn normalizer(self) -> Option<NormalizerWrapper> {
        match self.normal_form {
            NormalForm::AsIs => None,
            NormalForm::Nfc => Some(tokenizers::normalizers::NFC.into()),
        }
    }

    /// Builds the pre-tokenizer: cuts words and writes their bytes in GPT-2's alphabet.
    pub(crate) fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        // (add_prefix_space, trim_offsets, use_regex)
        let gpt2_words = ByteLevel::new(false, true, true);
        Ok(match self.words {
            Words::Gpt2 => gpt2_words.into(),
            Words::DigitsThenGpt2 => {
                Sequence::new(vec![Digits::new(true).into(), gpt2_words.into()]).into()
            }
            Words::Pattern(pattern) => {
                let pattern = SplitPattern::Regex(pattern.to_owned());
                let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|source| TokenizerError::Build { source })?;
                let bytes_only = ByteLevel::new(false, true, false);
                Sequence::new(vec![split.into(), bytes_only.into()]).into()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_builds_and_an_unknown_name_lists_them() {
        for rule in RULES {
            let found = PreTokenizerRule::find(Some(rule.name)).unwrap();
            found.pre_tokenizer().unwrap();
        }
        let error = PreTokenizerRule::find(Some("nonesuch")).unwrap_err().to_string();
        assert!(error.contains("\"nonesuch\"") && error.contains("smollm, starcoder"), "{error}");
        let error = PreTokenizerRule::find(None).unwrap_err().to_string();
        assert!(error.contains("no tokenizer.ggml.pre"), "{error}");
    }
}
