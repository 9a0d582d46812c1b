//! A file with what could also be said on the command line.
//!
//! Keys are the flags' names with `_` for `-`. The command line wins, flag by flag; a key that is
//! no flag is an error, for it would be a typing error that goes unnoticed.

use crate::error::ServebenchError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;

/// The keys of a file.
pub(crate) type Keys = Map<String, Value>;

/// Reads a file: YAML, TOML or JSON by its name; any other is taken for YAML, of which JSON is a
/// part.
pub(crate) fn read(path: &Path) -> Result<Keys, ServebenchError> {
    let text = fs::read_to_string(path).map_err(|source| ServebenchError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or_default();
    let parsed: Result<Value, String> = match suffix.to_ascii_lowercase().as_str() {
        "toml" => toml::from_str(&text).map_err(|error| error.to_string()),
        "json" => serde_json::from_str(&text).map_err(|error| error.to_string()),
        _ => serde_saphyr::from_str(&text).map_err(|error| error.to_string()),
    };
    match parsed {
        Ok(Value::Object(keys)) => Ok(keys),
        Ok(_) => Err(in_file(path, "must hold names of flags and their values")),
        Err(error) => Err(in_file(path, error.trim_end())),
    }
}

/// Returns `args` with what the file says wherever `args` say nothing.
pub(crate) fn merge<T>(args: &T, mut file: Keys, path: &Path) -> Result<T, ServebenchError>
where
    T: Serialize + DeserializeOwned + Default,
{
    let known = to_keys(&T::default());
    for (key, value) in &file {
        if !known.contains_key(key) {
            let names = known.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(in_file(path, &format!("{key:?} is no flag; flags are {names}")));
        }
        // One key alone, so that the error can name it.
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        serde_json::from_value::<T>(Value::Object(alone))
            .map_err(|error| in_file(path, &format!("{key}: {error}")))?;
    }
    file.extend(to_keys(args).into_iter().filter(|(_, value)| !value.is_null()));
    serde_json::from_value(Value::Object(file)).map_err(|error| in_file(path, &error.to_string()))
}

fn to_keys<T: Serialize>(args: &T) -> Keys {
    match serde_json::to_value(args) {
        Ok(Value::Object(keys)) => keys,
        other => unreachable!("arguments are a structure of plain values, not {other:?}"),
    }
}

fn in_file(path: &Path, message: &str) -> ServebenchError {
    ServebenchError::Usage {
        flag: format!("--config {}", path.display()),
        message: message.to_owned(),
    }
}
