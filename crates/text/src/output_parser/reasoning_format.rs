//! How families of models mark their reasoning, as data.
//!
//! Names follow vLLM's `--reasoning-parser`. A format is chosen by what the chat template holds.

use super::ReasoningStart;

/// A family's way to mark reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>` where the model writes both, or the prompt the first: Qwen 3 and most
    /// others.
    Qwen3,
    /// As [`ReasoningFormat::Qwen3`], but an answer begins inside even if nobody wrote the first.
    DeepseekR1,
    /// `[THINK]…[/THINK]`: Mistral.
    Mistral,
}

const NAMES: &[(&str, ReasoningFormat)] = &[
    ("deepseek_r1", ReasoningFormat::DeepseekR1),
    ("mistral", ReasoningFormat::Mistral),
    ("qwen3", ReasoningFormat::Qwen3),
];

impl ReasoningFormat {
    /// Returns the format of a name, `None` for names that no format has.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Returns the names of all formats, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Chooses the format whose end marker the chat template holds: templates write it, or look for
    /// it in earlier answers. `None` if it holds none.
    #[must_use]
    pub fn detect(template: &str) -> Option<Self> {
        let formats = [Self::Qwen3, Self::Mistral];
        formats.into_iter().find(|format| template.contains(format.end()))
    }

    /// Tells whether an output begins inside reasoning.
    #[must_use]
    pub fn begins_inside(self, start: ReasoningStart) -> bool {
        start == ReasoningStart::Begun || self == Self::DeepseekR1
    }

    /// Returns the marker that begins reasoning.
    #[must_use]
    pub fn start(self) -> &'static str {
        match self {
            Self::Qwen3 | Self::DeepseekR1 => "<think>",
            Self::Mistral => "[THINK]",
        }
    }

    /// Returns the marker that ends reasoning.
    #[must_use]
    pub fn end(self) -> &'static str {
        match self {
            Self::Qwen3 | Self::DeepseekR1 => "</think>",
            Self::Mistral => "[/THINK]",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names_and_signs() {
        assert!(ReasoningFormat::names().is_sorted());
        assert_eq!(ReasoningFormat::from_name("qwen3"), Some(ReasoningFormat::Qwen3));
        assert_eq!(ReasoningFormat::from_name("none"), None);
        assert_eq!(ReasoningFormat::detect("{{ messages }}"), None);
        let template = "{% set content = content.split('</think>')[-1] %}";
        assert_eq!(ReasoningFormat::detect(template), Some(ReasoningFormat::Qwen3));
        assert_eq!(ReasoningFormat::detect("[THINK]a[/THINK]"), Some(ReasoningFormat::Mistral));
    }
}
