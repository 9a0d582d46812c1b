//! A JSON object that is read member by member, so that none is overlooked.

use crate::wire::error::ApiError;
use serde_json::{Map, Value};

/// What is left to read of an object.
#[derive(Debug)]
pub(crate) struct Members {
    /// Where the object stands in the body.
    path: String,
    members: Map<String, Value>,
}

impl Members {
    /// Starts to read `value`, which stands at `path`.
    ///
    /// # Errors
    /// Refuses what is not an object.
    pub(crate) fn new(path: impl Into<String>, value: Value) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(members) => Ok(Self { path, members }),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Err(ApiError::invalid(path, "must be an object")),
        }
    }

    /// Returns the path to a member.
    pub(crate) fn path_to(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    /// Refuses a member for the reason in `message`.
    pub(crate) fn invalid(&self, name: &str, message: &str) -> ApiError {
        ApiError::invalid(self.path_to(name), message)
    }

    /// Takes a member; `null` is as good as none.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a text.
    ///
    /// # Errors
    /// Refuses its absence and other types.
    pub(crate) fn text(&mut self, name: &str) -> Result<String, ApiError> {
        match self.take(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(self.invalid(name, "must be a string")),
        }
    }

    /// Takes a flag; absent, it is `false`.
    ///
    /// # Errors
    /// Refuses other types.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(self.invalid(name, "must be true or false")),
        }
    }

    /// Drops members that change nothing.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        for name in names {
            self.members.remove(*name);
        }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Refuses what has not been read.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let rest = self.members.iter().find(|(_, value)| !value.is_null());
        match rest {
            Some((name, _)) => Err(ApiError::UnknownField { param: self.path_to(name) }),
            None => Ok(()),
        }
    }
}
