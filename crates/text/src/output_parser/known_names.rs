//! Which names a call may have.

/// The names of a request's tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownNames(pub(crate) Vec<String>);

/// How a call that is written in some place is told from text that looks like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// A marker stands before it: whatever name it has, it is a call, and its arguments may be
    /// missing.
    Marked,
    /// Nothing but its form: it is a call only with the name of a tool and with arguments.
    Bare,
}

impl KnownNames {
    /// Tells whether a call on `evidence` may have this name.
    pub(crate) fn accept(&self, name: &str, evidence: Evidence) -> bool {
        match evidence {
            Evidence::Marked => !name.is_empty(),
            Evidence::Bare => self.0.iter().any(|known| known == name),
        }
    }
}
