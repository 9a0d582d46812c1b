//! How families of models write tool calls, as data.
//!
//! Formats are those of the models' own chat templates; names follow vLLM's `--tool-call-parser`
//! where it has one. A format is chosen by what the chat template holds ([`ToolFormat::detect`]), in
//! the order of [`SIGNS`], since a template shows the model how to write a call.

use super::known_tools::Evidence;
use super::markup_call::FUNCTION;
use super::named_call::{ARGS, CALL_ID};

/// A family's way to write calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name": …, "arguments": …}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer, or behind `<|python_tag|>`: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS] [{"name": …, "arguments": …}]` or `[TOOL_CALLS]name[ARGS]{…}`: Mistral.
    Mistral,
    /// `[name(key=value)]` as the whole answer: Llama 3.2 and Gemma with such a prompt.
    Pythonic,
    /// `name(key=value)` or JSON in a fenced block, or either as the whole answer: Gemma.
    Gemma,
    /// A JSON object or a list of them as the whole answer, fenced or not.
    Json,
    /// `<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`:
    /// Qwen3-Coder, which now and then leaves out the outer tags.
    Qwen3Coder,
}

/// What begins a call, or several, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opener {
    /// The marker.
    pub(crate) marker: &'static str,
    /// The marker that ends what it began.
    pub(crate) closer: Option<&'static str>,
    /// What a call behind it needs to be one.
    pub(crate) evidence: Evidence,
}

/// How a call can begin that is no JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameSyntax {
    /// Not at all.
    None,
    /// As `name(`.
    Python,
    /// As `name[ARGS]`.
    Named,
    /// As `<function=name>`.
    Markup,
}

/// Whether a call can be the whole answer, without a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BareCalls {
    Accepted,
    Text,
}

/// A format's grammar.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Grammar {
    pub(crate) openers: &'static [Opener],
    pub(crate) bare_calls: BareCalls,
    /// What a name means behind an opener.
    pub(crate) name_syntax: NameSyntax,
}

const HERMES: Grammar = Grammar {
    openers: &[Opener {
        marker: "<tool_call>",
        closer: Some("</tool_call>"),
        evidence: Evidence::Marked,
    }],
    bare_calls: BareCalls::Text,
    name_syntax: NameSyntax::None,
};

const LLAMA3_JSON: Grammar = Grammar {
    openers: &[Opener { marker: "<|python_tag|>", closer: None, evidence: Evidence::Marked }],
    bare_calls: BareCalls::Accepted,
    name_syntax: NameSyntax::None,
};

const MISTRAL: Grammar = Grammar {
    openers: &[Opener { marker: "[TOOL_CALLS]", closer: None, evidence: Evidence::Marked }],
    bare_calls: BareCalls::Text,
    name_syntax: NameSyntax::Named,
};

const PYTHONIC: Grammar =
    Grammar { openers: &[], bare_calls: BareCalls::Accepted, name_syntax: NameSyntax::Python };

const GEMMA: Grammar = Grammar {
    openers: &[fence("```tool_code"), fence("```json"), fence("```tool_call")],
    bare_calls: BareCalls::Accepted,
    name_syntax: NameSyntax::Python,
};

const JSON: Grammar = Grammar {
    openers: &[fence("```json")],
    bare_calls: BareCalls::Accepted,
    name_syntax: NameSyntax::None,
};

const QWEN3_CODER: Grammar = Grammar {
    openers: &[
        Opener { marker: "<tool_call>", closer: Some("</tool_call>"), evidence: Evidence::Marked },
        Opener { marker: FUNCTION, closer: Some("</tool_call>"), evidence: Evidence::Bare },
    ],
    bare_calls: BareCalls::Text,
    name_syntax: NameSyntax::Markup,
};

const fn fence(marker: &'static str) -> Opener {
    Opener { marker, closer: Some("```"), evidence: Evidence::Bare }
}

const NAMES: &[(&str, ToolFormat)] = &[
    ("gemma", ToolFormat::Gemma),
    ("hermes", ToolFormat::Hermes),
    ("json", ToolFormat::Json),
    ("llama3_json", ToolFormat::Llama3Json),
    ("mistral", ToolFormat::Mistral),
    ("pythonic", ToolFormat::Pythonic),
    ("qwen3_coder", ToolFormat::Qwen3Coder),
];

/// Texts of which a template with the format holds all, and texts that it holds none of. `<arg_key>`
/// and `<function=` show formats that write `<tool_call>` too and something else than JSON behind it.
const SIGNS: &[(&[&str], &[&str], ToolFormat)] = &[
    (&["[TOOL_CALLS]"], &[], ToolFormat::Mistral),
    (&["<tool_call>"], &["<arg_key>", "<function="], ToolFormat::Hermes),
    (&["<tool_call>", "<function=", "<parameter="], &["<arg_key>"], ToolFormat::Qwen3Coder),
    (&["tool_code"], &["<|python_tag|>"], ToolFormat::Gemma),
    (&["\"parameters\"", "ipython"], &[], ToolFormat::Llama3Json),
    (&["<|python_tag|>"], &[], ToolFormat::Llama3Json),
    (&["func_name1("], &[], ToolFormat::Pythonic),
];

impl ToolFormat {
    /// Returns the format of a name, `None` for names that no format has.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Returns the names of all formats, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|(name, _)| *name)
    }

    /// Chooses the format of a chat template: that of the first signs that it bears. One that takes
    /// tools and bears none gets [`ToolFormat::Json`], which finds calls by the tools' names;
    /// `None` for one that never mentions tools, or shows a format that is not read here.
    #[must_use]
    pub fn detect(template: &str) -> Option<Self> {
        if !template.contains("tools") {
            return None;
        }
        let holds = |texts: &[&str]| texts.iter().all(|text| template.contains(text));
        let lacks = |texts: &[&str]| !texts.iter().any(|text| template.contains(text));
        let signed = SIGNS.iter().find(|(needed, foreign, _)| holds(needed) && lacks(foreign));
        match signed {
            Some((_, _, format)) => Some(*format),
            None if template.contains("<tool_call>") => None,
            None => Some(Self::Json),
        }
    }

    /// Returns all markers of the format.
    pub(crate) fn markers(self) -> impl Iterator<Item = &'static str> {
        let grammar = self.grammar();
        let openers = grammar.openers.iter();
        let markers = openers.flat_map(|opener| [Some(opener.marker), opener.closer]).flatten();
        let inner: &[&str] = match grammar.name_syntax {
            NameSyntax::Named => &[ARGS, CALL_ID],
            NameSyntax::None | NameSyntax::Python | NameSyntax::Markup => &[],
        };
        markers.chain(inner.iter().copied())
    }

    pub(crate) fn grammar(self) -> &'static Grammar {
        match self {
            Self::Hermes => &HERMES,
            Self::Llama3Json => &LLAMA3_JSON,
            Self::Mistral => &MISTRAL,
            Self::Pythonic => &PYTHONIC,
            Self::Gemma => &GEMMA,
            Self::Json => &JSON,
            Self::Qwen3Coder => &QWEN3_CODER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_lead_to_their_formats() {
        assert!(ToolFormat::names().is_sorted());
        assert_eq!(ToolFormat::from_name("hermes"), Some(ToolFormat::Hermes));
        assert_eq!(ToolFormat::from_name("none"), None);
    }

    #[test]
    fn templates_are_told_apart_by_what_they_show_the_model() {
        let check = |template: &str, expected| {
            assert_eq!(ToolFormat::detect(template), expected, "{template}");
        };
        check("{{ messages }}", None);
        check("{% if tools %}<tool_call>{\"name\": ", Some(ToolFormat::Hermes));
        check("{% if tools %}<tool_call>\n<function=name>", None);
        let coder = "{% if tools %}<tool_call>\n<function=name>\n<parameter=key>";
        check(coder, Some(ToolFormat::Qwen3Coder));
        check("{% if tools %}<tool_call>{{ name }}\n<arg_key>", None);
        check("{% if tools %}[AVAILABLE_TOOLS] [TOOL_CALLS]", Some(ToolFormat::Mistral));
        check("{% if tools %}{{ tools | tojson }}", Some(ToolFormat::Json));
        let llama = "{% if tools %}Environment: ipython {\"name\": f, \"parameters\": d}";
        check(llama, Some(ToolFormat::Llama3Json));
    }
}
