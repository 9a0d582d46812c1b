//! Names of places in a JSON document, as `param` of an error writes them: `properties.a.enum[2]`.

/// Appends the name of a member of an object.
pub(crate) fn member(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// Appends the name of an item of an array.
pub(crate) fn item(path: &str, index: usize) -> String {
    format!("{path}[{index}]")
}
