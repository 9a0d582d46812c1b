//! The API's document, as a server gives it, and what it says about bodies.

use crate::client::{Response, get};
use jsonschema::Validator;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// An operation of the document, and validators of what it takes and gives.
pub(crate) struct Operation {
    pub(crate) method: String,
    /// With names of parameters in braces.
    pub(crate) path: String,
    /// Schema and validator of the body.
    pub(crate) request: Option<(Value, Arc<Validator>)>,
    /// By status and content type.
    answers: BTreeMap<(u16, String), Arc<Validator>>,
}

/// The document.
pub(crate) struct Document {
    pub(crate) json: Value,
    pub(crate) operations: Vec<Operation>,
}

impl Document {
    /// Asks a server for it.
    pub(crate) fn of(address: SocketAddr) -> Self {
        let response = get(address, "/openapi.json");
        assert_eq!(response.status, 200, "{}", response.body);
        let json = response.json();
        let mut validators = Validators { document: &json, by_schema: BTreeMap::new() };
        let mut operations = Vec::new();
        for (path, item) in json["paths"].as_object().unwrap() {
            for (method, entry) in item.as_object().unwrap() {
                operations.push(operation(&mut validators, path, method, entry));
            }
        }
        Self { json, operations }
    }

    /// Returns the operations that take a body.
    pub(crate) fn with_bodies(&self) -> impl Iterator<Item = &Operation> {
        self.operations.iter().filter(|operation| operation.request.is_some())
    }

    /// Follows a reference.
    pub(crate) fn resolved<'a>(&'a self, schema: &'a Value) -> &'a Value {
        match schema.get("$ref").and_then(Value::as_str) {
            Some(target) => self.json.pointer(target.strip_prefix('#').unwrap()).unwrap(),
            None => schema,
        }
    }
}

impl Operation {
    /// Checks that an answer is one that the document names, of the form that it gives.
    pub(crate) fn check_answer(&self, response: &Response, context: &str) {
        let content_type = response.header("content-type").unwrap_or_default().to_owned();
        let key = (response.status, content_type);
        let place = || format!("{} {}: {key:?} to {context}", self.method, self.path);
        let validator = self.answers.get(&key);
        let validator = validator.unwrap_or_else(|| panic!("{} is not documented", place()));
        match key.1.as_str() {
            "application/json" => check(validator, &response.json(), &place()),
            "text/event-stream" => {
                for event in response.events() {
                    let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                    if let Some(data) = data.filter(|data| *data != "[DONE]") {
                        check(validator, &serde_json::from_str(data).unwrap(), &place());
                    }
                }
            }
            "application/x-ndjson" => {
                for line in response.body.lines() {
                    check(validator, &serde_json::from_str(line).unwrap(), &place());
                }
            }
            _ => check(validator, &json!(response.body), &place()),
        }
    }
}

fn check(validator: &Validator, value: &Value, place: &str) {
    if let Err(error) = validator.validate(value) {
        panic!("{place}: {error} at {} in {value}", error.instance_path);
    }
}

/// The validators of a document's schemas; most answers have the schema of errors.
struct Validators<'a> {
    document: &'a Value,
    by_schema: BTreeMap<String, Arc<Validator>>,
}

impl Validators<'_> {
    fn of(&mut self, schema: &Value) -> Arc<Validator> {
        let validator = self.by_schema.entry(schema.to_string()).or_insert_with(|| {
            let mut whole = schema.clone();
            whole["components"]["schemas"] = self.document["components"]["schemas"].clone();
            Arc::new(jsonschema::validator_for(&whole).unwrap())
        });
        Arc::clone(validator)
    }
}

fn operation(
    validators: &mut Validators<'_>,
    path: &str,
    method: &str,
    entry: &Value,
) -> Operation {
    let request = &entry["requestBody"]["content"]["application/json"]["schema"];
    let request = (!request.is_null()).then(|| (request.clone(), validators.of(request)));
    let mut answers = BTreeMap::new();
    for (status, response) in entry["responses"].as_object().unwrap() {
        for (content_type, content) in response["content"].as_object().unwrap() {
            let key = (status.parse().unwrap(), content_type.to_lowercase());
            answers.insert(key, validators.of(&content["schema"]));
        }
    }
    Operation { method: method.to_uppercase(), path: path.to_owned(), request, answers }
}
