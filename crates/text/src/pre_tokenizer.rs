//! How byte-level checkpoints cut text into words before merging, by `tokenizer.ggml.pre`.
//!
//! GGUF stores a name where `tokenizer.json` stores the rules, so the rules are a table here. A
//! wrong rule changes ids silently; therefore only names whose rules are known for certain have an
//! entry, and any other name is an error. Sources: the published `tokenizer.json` of each model
//! family, and the names that llama.cpp's converter writes. Where llama.cpp itself cuts otherwise
//! (it has no normal forms), the model family's rule is taken: that is what the model was trained on.

use crate::TokenizerError;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper, SplitDelimiterBehavior};

/// One entry of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreTokenizerRule {
    name: &'static str,
    /// Each cuts further what the one before left.
    steps: &'static [Step],
    normal_form: NormalForm,
    /// A word that is a token is taken whole, without merging towards it.
    pub(crate) whole_words: bool,
    /// The prompt begins with BOS unless the file says otherwise.
    pub(crate) adds_bos: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// GPT-2's pattern, which the `tokenizers` crate has built in; writes bytes in its alphabet.
    Gpt2,
    /// Each digit is a word.
    Digits,
    /// Each run of digits is a word.
    DigitRuns,
    /// Each run of punctuation is a word.
    Punctuation,
    /// The matches of a pattern are words, and so is what lies between them.
    Matches(&'static str),
}

#[derive(Clone, Copy, Debug)]
enum NormalForm {
    AsIs,
    Nfc,
}

const GPT2: &[Step] = &[Step::Gpt2];
const DIGITS_THEN_GPT2: &[Step] = &[Step::Digits, Step::Gpt2];

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

/// What llama.cpp does where a converter knew nothing better: as Falcon, in patterns of its own.
const LLAMA_CPP_DEFAULT: &[Step] = &[
    Step::Matches(r"[\p{P}\$\+<=>\^~\|]+"),
    Step::Matches(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"),
    Step::Matches(r"\p{N}+"),
    THREE_DIGITS,
];
const THREE_DIGITS: Step = Step::Matches("[0-9][0-9][0-9]");
/// BLOOM: words end at white space and punctuation, both of which begin the next.
const BLOOM: Step = Step::Matches(r" ?[^(\s|.,!?…。，、।۔،)]+");
const LINE_BREAK: Step = Step::Matches(r"[\r\n]");
/// DeepSeek's range of Chinese characters, and what else it takes along.
const DEEPSEEK_CJK: Step = Step::Matches("[一-龥ࠀ-一가-\u{D7FF}]+");
/// DeepSeek LLM: letters of the alphabets with upper and lower case, as ranges.
const CASED_LETTERS: Step = Step::Matches(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);
const DEEPSEEK_LLM: &[Step] = &[
    LINE_BREAK,
    CASED_LETTERS,
    Step::Matches(r"\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"),
    Step::Matches(r"\s+$"),
    DEEPSEEK_CJK,
    Step::Digits,
];
const DEEPSEEK_CODER: &[Step] = &[
    LINE_BREAK,
    Step::Matches(r"\s?\p{L}+"),
    Step::Matches(r"\s?\p{P}+"),
    DEEPSEEK_CJK,
    Step::Digits,
];
/// DeepSeek V3: Chinese and Japanese apart, a mark of punctuation with the letters after it.
const DEEPSEEK_V3: &[Step] = &[
    Step::Matches(r"\p{N}{1,3}"),
    Step::Matches("[一-龥\u{3040}-ゟ゠-ヿ]+"),
    Step::Matches(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ),
];
const FALCON: &[Step] = &[Step::Punctuation, Step::Gpt2, Step::DigitRuns, THREE_DIGITS];

const fn rule(name: &'static str, steps: &'static [Step]) -> PreTokenizerRule {
    let normal_form = NormalForm::AsIs;
    PreTokenizerRule { name, steps, normal_form, whole_words: false, adds_bos: false }
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
    rule("default", LLAMA_CPP_DEFAULT),
    rule("gpt-2", GPT2),
    rule("phi-2", GPT2),
    rule("jais", GPT2),
    nfc(rule("mpt", GPT2)),
    nfc(rule("olmo", GPT2)),
    rule("smollm", DIGITS_THEN_GPT2),
    rule("starcoder", DIGITS_THEN_GPT2),
    rule("refact", DIGITS_THEN_GPT2),
    nfc(rule("command-r", DIGITS_THEN_GPT2)),
    rule("falcon", FALCON),
    rule("bloom", &[BLOOM]),
    rule("gpt3-finnish", &[BLOOM]),
    rule("poro-chat", &[BLOOM]),
    rule("viking", &[BLOOM, Step::Digits]),
    rule("deepseek-llm", DEEPSEEK_LLM),
    rule("deepseek-coder", DEEPSEEK_CODER),
    rule("deepseek-v3", DEEPSEEK_V3),
    whole_words_and_bos(rule("llama-bpe", &[Step::Matches(LLAMA3)])),
    whole_words_and_bos(rule("llama3", &[Step::Matches(LLAMA3)])),
    whole_words_and_bos(rule("llama-v3", &[Step::Matches(LLAMA3)])),
    rule("dbrx", &[Step::Matches(LLAMA3)]),
    rule("smaug-bpe", &[Step::Matches(LLAMA3)]),
    rule("chatglm-bpe", &[Step::Matches(LLAMA3)]),
    rule("glm4", &[Step::Matches(LLAMA3)]),
    nfc(rule("qwen2", &[Step::Matches(QWEN2)])),
    nfc(rule("qwen35", &[Step::Matches(QWEN35)])),
    nfc(rule("deepseek-r1-qwen", &[Step::Matches(QWEN2)])),
    whole_words_and_bos(rule("tekken", &[Step::Matches(TEKKEN)])),
    rule("gpt-4o", &[Step::Matches(GPT4O)]),
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
        let mut parts: Vec<PreTokenizerWrapper> = Vec::with_capacity(self.steps.len() + 1);
        for step in self.steps {
            parts.push(step.pre_tokenizer()?);
        }
        if !self.steps.iter().any(|step| matches!(step, Step::Gpt2)) {
            parts.push(bytes_of_words(WordRule::AsCut).into());
        }
        Ok(Sequence::new(parts).into())
    }
}

impl Step {
    fn pre_tokenizer(self) -> Result<PreTokenizerWrapper, TokenizerError> {
        Ok(match self {
            Self::Gpt2 => bytes_of_words(WordRule::Gpt2).into(),
            Self::Digits => Digits::new(true).into(),
            Self::DigitRuns => Digits::new(false).into(),
            Self::Punctuation => Punctuation::new(SplitDelimiterBehavior::Contiguous).into(),
            Self::Matches(pattern) => {
                let pattern = SplitPattern::Regex(pattern.to_owned());
                Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
                    .map_err(|source| TokenizerError::Build { source })?
                    .into()
            }
        })
    }
}

/// How the step that writes bytes cuts words before it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WordRule {
    Gpt2,
    AsCut,
}

fn bytes_of_words(rule: WordRule) -> ByteLevel {
    // (add_prefix_space, trim_offsets, use_regex)
    ByteLevel::new(false, true, rule == WordRule::Gpt2)
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
