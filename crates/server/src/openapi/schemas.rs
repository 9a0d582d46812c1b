//! The schemas of wire types, each once and under its name.
//!
//! A type is described as it is read where it is part of a request and as it is written where it is
//! part of an answer: only the first may leave out what has a default.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

/// Where references look for schemas.
const PATH: &str = "/components/schemas";

/// The schemas that a document refers to.
pub(crate) struct Schemas {
    requests: SchemaGenerator,
    answers: SchemaGenerator,
}

impl Schemas {
    /// Begins without any.
    pub(super) fn new() -> Self {
        let settings = SchemaSettings::draft2020_12().with(|settings| {
            settings.definitions_path = PATH.into();
            settings.meta_schema = None;
        });
        let requests = settings.clone().for_deserialize().into_generator();
        Self { requests, answers: settings.for_serialize().into_generator() }
    }

    /// Returns the schema of a type that is read, or a reference to it.
    pub(super) fn of_request<T: JsonSchema>(&mut self) -> Value {
        self.requests.subschema_for::<T>().to_value()
    }

    /// Returns the schema of a type that is written, or a reference to it.
    pub(super) fn of_answer<T: JsonSchema>(&mut self) -> Value {
        self.answers.subschema_for::<T>().to_value()
    }

    /// Returns all schemas by name.
    ///
    /// # Panics
    /// When a type that is read and another that is written have one name: references could not tell
    /// them apart.
    pub(super) fn into_components(mut self) -> Map<String, Value> {
        let mut schemas = self.requests.take_definitions(true);
        for (name, schema) in self.answers.take_definitions(true) {
            assert!(!schemas.contains_key(&name), "two wire types are called {name}");
            schemas.insert(name, schema);
        }
        schemas
    }
}
