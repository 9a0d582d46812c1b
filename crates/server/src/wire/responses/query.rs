//! Query strings of the routes about stored responses.
//!
//! Read by name, so that none is overlooked; of a name that comes twice, the last counts.

use crate::wire::error::ApiError;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Items of a listing at most, and where nobody says how many.
const MAX_ITEMS: usize = 100;
const DEFAULT_ITEMS: usize = 20;

/// How a response is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retrieval {
    /// As it is.
    Whole,
    /// Event by event, behind the one with this number if there is one.
    Stream { starting_after: Option<u64> },
}

impl Retrieval {
    /// Reads a query.
    ///
    /// # Errors
    /// Refuses what is no number or switch, and names that are not known.
    pub(crate) fn read(query: Option<&str>) -> Result<Self, ApiError> {
        let mut fields = fields(query);
        // What a response includes was said when it was created.
        fields.remove("include");
        let stream = switch(&mut fields, "stream")?;
        if switch(&mut fields, "include_obfuscation")? {
            return Err(ApiError::UnsupportedField { param: "include_obfuscation".to_owned() });
        }
        let starting_after = match fields.remove("starting_after") {
            None => None,
            Some(_) if !stream => {
                return Err(ApiError::invalid("starting_after", "needs `stream=true`"));
            }
            Some(number) => {
                // Rust would take a sign for a part of a number.
                let digits = Some(number).filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
                let number = digits.and_then(|digits| digits.parse().ok());
                let message = "must be the number of an event, from 0 on";
                Some(number.ok_or_else(|| ApiError::invalid("starting_after", message))?)
            }
        };
        refuse_rest(fields)?;
        Ok(if stream { Self::Stream { starting_after } } else { Self::Whole })
    }
}

/// Takes a switch out of a query, off where it is missing.
fn switch(fields: &mut BTreeMap<String, String>, name: &str) -> Result<bool, ApiError> {
    match fields.remove(name).as_deref() {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(_) => Err(ApiError::invalid(name, "must be `true` or `false`")),
    }
}

/// Returns the schema of how many items a listing may be asked to have.
pub(crate) fn schema_of_limits() -> Value {
    json!({"type": "integer", "minimum": 1, "maximum": MAX_ITEMS, "default": DEFAULT_ITEMS})
}

/// Which of a response's input items are asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ItemQuery {
    /// The item behind which the listing begins.
    pub(crate) after: Option<String>,
    /// Items at most, 1 to 100.
    pub(crate) limit: usize,
    /// In which order.
    pub(crate) order: ItemOrder,
}

/// The order of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemOrder {
    /// As they were said.
    Ascending,
    /// The last first.
    Descending,
}

impl ItemQuery {
    /// Reads a query.
    ///
    /// # Errors
    /// Refuses values out of range, and names that are not known.
    pub(crate) fn read(query: Option<&str>) -> Result<Self, ApiError> {
        let mut fields = fields(query);
        fields.remove("include");
        let after = fields.remove("after");
        let limit = match fields.remove("limit") {
            None => DEFAULT_ITEMS,
            Some(limit) => {
                let limit = limit.parse().ok();
                let limit = limit.filter(|limit| (1..=MAX_ITEMS).contains(limit));
                let message = format!("must be a whole number from 1 to {MAX_ITEMS}");
                limit.ok_or_else(|| ApiError::invalid("limit", message))?
            }
        };
        let order = match fields.remove("order").as_deref() {
            None | Some("desc") => ItemOrder::Descending,
            Some("asc") => ItemOrder::Ascending,
            Some(_) => return Err(ApiError::invalid("order", "must be \"asc\" or \"desc\"")),
        };
        refuse_rest(fields)?;
        Ok(Self { after, limit, order })
    }
}

/// Returns the fields of a query; a list's name is the same with and without `[]`.
fn fields(query: Option<&str>) -> BTreeMap<String, String> {
    let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let read = pairs.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded(name);
        (name.strip_suffix("[]").unwrap_or(&name).to_owned(), decoded(value))
    });
    read.collect()
}

/// Decodes what a URL has instead of characters; what is no code stays as it is.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let digits = bytes.get(i + 1..i + 3).filter(|_| bytes[i] == b'%');
        match digits.and_then(byte_of) {
            Some(byte) => {
                plain.push(byte);
                i += 3;
            }
            None => {
                plain.push(if bytes[i] == b'+' { b' ' } else { bytes[i] });
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Returns the byte that two hexadecimal digits say.
fn byte_of(digits: &[u8]) -> Option<u8> {
    // Rust would take a sign for a digit.
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn refuse_rest(fields: BTreeMap<String, String>) -> Result<(), ApiError> {
    match fields.into_keys().next() {
        Some(param) => Err(ApiError::UnknownField { param }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_have_defaults_and_bounds() {
        let read = |query| ItemQuery::read(Some(query)).map_err(|error| format!("{error:?}"));
        let default = ItemQuery { after: None, limit: 20, order: ItemOrder::Descending };
        assert_eq!(ItemQuery::read(None), Ok(default));
        let all = "after=msg%5F1&limit=100&order=asc&include%5B%5D=x&include[]=y";
        let order = ItemOrder::Ascending;
        assert_eq!(read(all), Ok(ItemQuery { after: Some("msg_1".to_owned()), limit: 100, order }));
        for query in ["limit=0", "limit=101", "limit=-1", "limit=", "order=up", "before=x"] {
            assert!(read(query).is_err(), "{query}");
        }
    }

    #[test]
    fn streams_begin_behind_a_number() {
        let read = |query| Retrieval::read(Some(query)).map_err(|error| format!("{error:?}"));
        assert_eq!(Retrieval::read(None), Ok(Retrieval::Whole));
        assert_eq!(read("stream=false&include_obfuscation=false"), Ok(Retrieval::Whole));
        let stream = |starting_after| Ok(Retrieval::Stream { starting_after });
        assert_eq!(read("include=x&stream=true"), stream(None));
        assert_eq!(read("stream=true&starting_after=0"), stream(Some(0)));
        assert_eq!(read("starting_after=007&stream=true"), stream(Some(7)));
        for number in ["", "-1", "%2B1", "+1", "1.0", "1e3", "x", "18446744073709551616"] {
            let query = format!("stream=true&starting_after={number}");
            let error = format!("{:?}", Retrieval::read(Some(&query)).unwrap_err());
            assert!(error.contains("starting_after"), "{number}: {error}");
        }
        for query in ["starting_after=1", "stream=false&starting_after=1", "stream=1", "stream"] {
            assert!(read(query).is_err(), "{query}");
        }
        assert!(read("stream=true&include_obfuscation=true").is_err());
    }

    #[test]
    fn what_is_no_code_stays_as_it_is() {
        assert_eq!(decoded("a%20b+c%zz%"), "a b c%zz%");
        assert_eq!(decoded("%F0%9F%98%80%FF"), "😀\u{fffd}");
        assert_eq!(decoded("%+1"), "% 1");
    }
}
