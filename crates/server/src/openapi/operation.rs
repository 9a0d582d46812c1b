//! One route's entry in the API's document: what it takes and gives.
//!
//! What all routes have in common is not said again for each: who is refused, and how long a request
//! may take. An operation names what is its own.

use super::schemas::Schemas;
use crate::request_record::ErrorShape;
use crate::routes::ANTHROPIC_VERSION;
use crate::wire::anthropic::error::AnthropicErrorBody;
use crate::wire::error::{OllamaErrorBody, OpenAiErrorBody};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use schemars::JsonSchema;
use serde_json::{Map, Value, json};

/// Makes the schema of one type, or a reference to it.
type SchemaOf = fn(&mut Schemas) -> Value;

/// Statuses of refusals that every route has.
const REFUSALS: [StatusCode; 4] = [
    StatusCode::BAD_REQUEST,
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::SERVICE_UNAVAILABLE,
];

/// Statuses of refusals that routes with a body have.
const BODY_REFUSALS: [StatusCode; 3] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::PAYLOAD_TOO_LARGE,
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
];

/// Statuses of refusals that requests to the model have.
const MODEL_REFUSALS: [StatusCode; 4] = [
    StatusCode::NOT_FOUND,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::INTERNAL_SERVER_ERROR,
    StatusCode::GATEWAY_TIMEOUT,
];

/// What a route does under one method.
pub(crate) struct Operation {
    path: &'static str,
    method: &'static str,
    summary: &'static str,
    /// Parameters that other routes do not have.
    parameters: Vec<Value>,
    body: Option<SchemaOf>,
    answers: Vec<Answer>,
    refusals: Vec<StatusCode>,
}

/// A body that is given, in one of the forms of its status.
struct Answer {
    status: StatusCode,
    content_type: &'static str,
    schema: SchemaOf,
}

impl Operation {
    /// Begins the entry of `GET path`, as the router has it.
    pub(crate) fn get(path: &'static str, summary: &'static str) -> Self {
        Self::new("get", path, summary)
    }

    /// Begins the entry of `POST path`, as the router has it.
    pub(crate) fn post(path: &'static str, summary: &'static str) -> Self {
        Self::new("post", path, summary)
    }

    /// Begins the entry of `DELETE path`, as the router has it.
    pub(crate) fn delete(path: &'static str, summary: &'static str) -> Self {
        Self::new("delete", path, summary)
    }

    fn new(method: &'static str, path: &'static str, summary: &'static str) -> Self {
        let (parameters, answers, refusals) = (Vec::new(), Vec::new(), REFUSALS.to_vec());
        Self { path, method, summary, parameters, body: None, answers, refusals }
    }

    /// Looks at a parameter of the query.
    pub(crate) fn asks_query(
        self,
        name: &'static str,
        description: &'static str,
        schema: Value,
    ) -> Self {
        self.with_parameter("query", name, description, schema)
    }

    /// Answers in another form where a header is there.
    pub(crate) fn asks_header(self, name: &HeaderName, description: &'static str) -> Self {
        self.with_parameter("header", name.as_str(), description, json!({"type": "string"}))
    }

    fn with_parameter(mut self, place: &str, name: &str, description: &str, schema: Value) -> Self {
        let parameter =
            json!({"name": name, "in": place, "description": description, "schema": schema});
        self.parameters.push(parameter);
        self
    }

    /// Takes a `T` as JSON.
    pub(crate) fn takes<T: JsonSchema>(mut self) -> Self {
        self.body = Some(Schemas::of_request::<T>);
        self.refused_with(&BODY_REFUSALS)
    }

    /// Gives a `T` as JSON.
    pub(crate) fn gives<T: JsonSchema>(self) -> Self {
        self.answers_with::<T>(StatusCode::OK, "application/json")
    }

    /// Gives, where a stream is asked for, events whose data are `T`s.
    pub(crate) fn streams<T: JsonSchema>(self) -> Self {
        self.answers_with::<T>(StatusCode::OK, "text/event-stream")
    }

    /// Gives, where a stream is asked for, lines that are `T`s.
    pub(crate) fn streams_lines<T: JsonSchema>(self) -> Self {
        self.answers_with::<T>(StatusCode::OK, "application/x-ndjson")
    }

    /// Gives text.
    pub(crate) fn gives_text(self, content_type: &'static str) -> Self {
        self.answers_with::<String>(StatusCode::OK, content_type)
    }

    /// Answers with a `T` under this status.
    pub(crate) fn answers_with<T: JsonSchema>(
        mut self,
        status: StatusCode,
        content_type: &'static str,
    ) -> Self {
        self.answers.push(Answer { status, content_type, schema: Schemas::of_answer::<T> });
        self
    }

    /// Asks the model something, and may be refused as such.
    pub(crate) fn asks_model(self) -> Self {
        self.refused_with(&MODEL_REFUSALS)
    }

    /// May be refused with these statuses, too.
    pub(crate) fn refused_with(mut self, statuses: &[StatusCode]) -> Self {
        self.refusals.extend(statuses);
        self
    }

    /// Returns the path, as the router has it.
    pub(crate) fn path(&self) -> &'static str {
        self.path
    }

    /// Writes the entry into its path's item.
    pub(super) fn describe(&self, item: &mut Map<String, Value>, schemas: &mut Schemas) {
        let names = self.path.split('/').map(|part| part.trim_matches(['{', '}', '*']));
        let names: Vec<&str> = names.filter(|part| !part.is_empty()).collect();
        let mut parameters = vec![
            json!({"$ref": "#/components/parameters/RequestId"}),
            json!({"$ref": "#/components/parameters/RequestTimeout"}),
        ];
        for part in self.path.split('/').filter(|part| part.starts_with('{')) {
            let name = part.trim_matches(['{', '}', '*']);
            let schema = json!({"type": "string", "minLength": 1});
            parameters
                .push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
        }
        parameters.extend(self.parameters.iter().cloned());
        let name = if names.is_empty() { "root".to_owned() } else { names.join("_") };
        let mut entry = json!({
            "operationId": format!("{}_{}", self.method, name.replace(['-', '.'], "_")),
            "summary": self.summary,
            "parameters": parameters,
            "responses": self.responses(schemas),
        });
        if let Some(schema) = self.body {
            let content = json!({"application/json": {"schema": schema(schemas)}});
            entry["requestBody"] = json!({"required": true, "content": content});
        }
        item.insert(self.method.to_owned(), entry);
    }

    /// Returns the schema of refusals, whose shape may depend on which API a client says to speak.
    fn error(&self, schemas: &mut Schemas) -> Value {
        let anthropics = (ANTHROPIC_VERSION, HeaderValue::from_static("any"));
        let mut errors = [HeaderMap::new(), HeaderMap::from_iter([anthropics])].map(|headers| {
            match crate::routes::error_shape(self.path, Some(self.path), &headers) {
                ErrorShape::OpenAi => Schemas::of_answer::<OpenAiErrorBody>(schemas),
                ErrorShape::Anthropic => Schemas::of_answer::<AnthropicErrorBody>(schemas),
                ErrorShape::Ollama => Schemas::of_answer::<OllamaErrorBody>(schemas),
            }
        });
        if errors[0] == errors[1] { errors[0].take() } else { json!({"anyOf": errors}) }
    }

    fn responses(&self, schemas: &mut Schemas) -> Value {
        let mut forms: Vec<(StatusCode, &str, Value)> = Vec::new();
        for answer in &self.answers {
            forms.push((answer.status, answer.content_type, (answer.schema)(schemas)));
        }
        let error = self.error(schemas);
        for &status in &self.refusals {
            forms.push((status, "application/json", error.clone()));
        }
        let mut responses = Map::new();
        for (status, content_type, schema) in forms {
            let response = responses.entry(status.as_str()).or_insert_with(|| response(status));
            let content = &mut response["content"][content_type];
            *content = if content.is_null() {
                json!({"schema": schema})
            } else {
                json!({"schema": {"anyOf": [content["schema"], schema]}})
            };
        }
        Value::Object(responses)
    }
}

/// Returns the response of a status, its bodies still missing.
fn response(status: StatusCode) -> Value {
    let header = |name: &str| json!({"$ref": format!("#/components/headers/{name}")});
    let mut headers = Map::from_iter([("x-request-id".to_owned(), header("RequestId"))]);
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            headers.insert("retry-after".to_owned(), header("RetryAfter"));
        }
        StatusCode::UNAUTHORIZED => {
            headers.insert("www-authenticate".to_owned(), header("WwwAuthenticate"));
        }
        _ => {}
    }
    let description = status.canonical_reason().unwrap_or("An answer");
    json!({"description": description, "headers": headers, "content": {}})
}
