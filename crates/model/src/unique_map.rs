//! A JSON object in which no name appears twice.
//!
//! Readers differ in which of two equal names they take, so a file with such is refused.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

/// The names and values of a JSON object.
#[derive(Clone, Debug)]
pub(crate) struct UniqueMap<V>(pub(crate) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData)).map(Self)
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut map = BTreeMap::new();
        while let Some(name) = object.next_key::<String>()? {
            if map.contains_key(&name) {
                return Err(A::Error::custom(format!("the name `{name}` appears twice")));
            }
            let value = object.next_value()?;
            map.insert(name, value);
        }
        Ok(map)
    }
}
