//! Which parsers read a model's output: what the command line names, else what the chat template
//! shows.

use mini_infer_text::{ChatTemplate, OutputFormat, ReasoningFormat, Tokenizer, ToolFormat};
use std::str::FromStr;

/// How a parser is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParserChoice<F> {
    /// By the chat template.
    Auto,
    /// None: that part of the output stays text.
    None,
    /// By name.
    Named(F),
}

/// A format that has a name.
pub(crate) trait NamedFormat: Sized {
    /// Returns the format of a name.
    fn of_name(name: &str) -> Option<Self>;
    /// Returns the names of all formats.
    fn all_names() -> Vec<&'static str>;
}

impl NamedFormat for ToolFormat {
    fn of_name(name: &str) -> Option<Self> {
        Self::from_name(name)
    }

    fn all_names() -> Vec<&'static str> {
        Self::names().collect()
    }
}

impl NamedFormat for ReasoningFormat {
    fn of_name(name: &str) -> Option<Self> {
        Self::from_name(name)
    }

    fn all_names() -> Vec<&'static str> {
        Self::names().collect()
    }
}

impl<F: NamedFormat> FromStr for ParserChoice<F> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            name => F::of_name(name)
                .map(Self::Named)
                .ok_or_else(|| format!("use auto, none, or one of {}", F::all_names().join(", "))),
        }
    }
}

/// The parsers that were chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputParsers {
    /// For tool calls.
    pub(crate) tools: ParserChoice<ToolFormat>,
    /// For reasoning.
    pub(crate) reasoning: ParserChoice<ReasoningFormat>,
}

impl OutputParsers {
    /// Returns the format of a model's output.
    pub(crate) fn format(
        self,
        template: Option<&ChatTemplate>,
        tokenizer: &Tokenizer,
    ) -> OutputFormat {
        let source = template.map(ChatTemplate::source).unwrap_or_default();
        let tools = match self.tools {
            ParserChoice::Auto => ToolFormat::detect(source),
            ParserChoice::None => None,
            ParserChoice::Named(format) => Some(format),
        };
        let reasoning = match self.reasoning {
            ParserChoice::Auto => ReasoningFormat::detect(source),
            ParserChoice::None => None,
            ParserChoice::Named(format) => Some(format),
        };
        OutputFormat::new(tools, reasoning, tokenizer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsers_are_named_or_left_to_the_template() {
        let parse = |text: &str| text.parse::<ParserChoice<ToolFormat>>();
        assert_eq!(parse("auto"), Ok(ParserChoice::Auto));
        assert_eq!(parse("none"), Ok(ParserChoice::None));
        assert_eq!(parse("hermes"), Ok(ParserChoice::Named(ToolFormat::Hermes)));
        assert!(parse("hermes2").unwrap_err().contains("hermes, json"));
        assert!("x".parse::<ParserChoice<ReasoningFormat>>().unwrap_err().contains("qwen3"));
    }
}
