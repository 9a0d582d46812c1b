//! Groups of fields that both request types, or later ones, read from one place.
//!
//! A group is taken out of the fields that no request type names, so that what is left of those is
//! judged as before.

use super::error::ApiError;
use schemars::Schema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Takes the fields with these names out of `extra` and reads them as a `T`.
///
/// # Errors
/// Refuses a field of a wrong type, naming the path to it.
pub(crate) fn take<T: DeserializeOwned>(
    extra: &mut BTreeMap<String, Value>,
    names: &[&str],
) -> Result<T, ApiError> {
    let taken = names.iter().filter_map(|name| extra.remove_entry(*name));
    let taken = Value::Object(taken.collect::<Map<String, Value>>());
    serde_path_to_error::deserialize(taken).map_err(|error| {
        let path = error.path().to_string();
        ApiError::invalid(path, error.into_inner().to_string())
    })
}

/// Returns the schema of an object that holds the properties of all of `groups`.
pub(crate) fn merged<const N: usize>(groups: [Schema; N]) -> Schema {
    let mut properties = Map::new();
    for group in groups {
        if let Some(Value::Object(fields)) = group.get("properties") {
            properties.extend(fields.clone());
        }
    }
    Map::from_iter([("properties".to_owned(), Value::Object(properties))]).into()
}
