//! The tools of a request, as far as their calls are told from text by them.

use super::value_types::{ValueTypes, parameter_types};
use serde_json::Value;

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallableTool {
    name: String,
    /// What each parameter takes.
    parameters: Vec<(String, ValueTypes)>,
}

impl CallableTool {
    /// Describes a tool by its name and, if there is one, the JSON schema of its arguments.
    #[must_use]
    pub fn new(name: impl Into<String>, schema: Option<&Value>) -> Self {
        Self { name: name.into(), parameters: schema.map_or_else(Vec::new, parameter_types) }
    }
}

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownTools(pub(crate) Vec<CallableTool>);

/// How a call that is written in some place is told from text that looks like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// A marker stands before it: whatever name it has, it is a call, and its arguments may be
    /// missing.
    Marked,
    /// Nothing but its form: it is a call only with the name of a tool and with arguments.
    Bare,
}

impl KnownTools {
    /// Tells whether a call on `evidence` may have this name.
    pub(crate) fn accept(&self, name: &str, evidence: Evidence) -> bool {
        match evidence {
            Evidence::Marked => !name.is_empty(),
            Evidence::Bare => self.tool(name).is_some(),
        }
    }

    /// Returns what a parameter of a tool takes.
    pub(crate) fn types(&self, name: &str, parameter: &str) -> ValueTypes {
        let mut parameters = self.tool(name).into_iter().flat_map(|tool| &tool.parameters);
        parameters.find(|(known, _)| known == parameter).map_or_else(Default::default, |(_, t)| *t)
    }

    fn tool(&self, name: &str) -> Option<&CallableTool> {
        self.0.iter().find(|known| known.name == name)
    }
}
