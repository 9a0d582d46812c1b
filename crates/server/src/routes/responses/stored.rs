//! `GET` and `DELETE /v1/responses/{id}`, `POST /v1/responses/{id}/cancel` and
//! `GET /v1/responses/{id}/input_items`: what is kept of responses.
//!
//! The engine takes no part, so these are answered while the model loads and while requests drain,
//! too.

use super::answer::{json, json_answer};
use super::told::{self, ToldEvents};
use crate::client::Client;
use crate::request_record::RequestRecord;
use crate::response_store::FoundResponse;
use crate::state::AppState;
use crate::wire::error::ApiError;
use crate::wire::responses::item::Item;
use crate::wire::responses::query::{ItemOrder, ItemQuery, Retrieval};
use crate::wire::responses::response::{DeletedResponse, ItemList};
use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};

/// Returns a response, whole or as far as it has come, or tells it event by event.
pub(in crate::routes) async fn show(
    State(state): State<AppState>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    if let Retrieval::Stream { starting_after } = Retrieval::read(query.as_deref())? {
        let log = state.responses().events(client(), &id)?;
        let events = log.read(starting_after).map_err(|last| {
            let message = format!("there is no event behind it; the last one so far is {last}");
            ApiError::invalid("starting_after", message)
        })?;
        let record = RequestRecord::current();
        return Ok(told::response(ToldEvents { events, record }, state.config().ping_interval));
    }
    let body = match state.responses().get(client(), &id)? {
        FoundResponse::Running(response) => json(&response),
        FoundResponse::Ended(body) => body,
    };
    Ok(json_answer(body))
}

/// Forgets a response; one that runs in the background is ended.
pub(in crate::routes) async fn delete(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Json<DeletedResponse>, ApiError> {
    state.responses().delete(client(), &id)?;
    Ok(Json(DeletedResponse { id, object: "response", deleted: true }))
}

/// Ends a response that runs in the background, and returns what there is of it; one that has
/// ended is returned as it is.
pub(in crate::routes) async fn cancel(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let end = state.responses().cancel(client(), &id)?;
    Ok(json_answer(end.wait().await.clone()))
}

/// Lists what the model was given but for the instructions.
pub(in crate::routes) async fn input_items(
    State(state): State<AppState>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = ItemQuery::read(query.as_deref())?;
    let items = state.responses().input(client(), &id)?;
    let mut items: Vec<&Item> = items.iter().map(AsRef::as_ref).collect();
    if query.order == ItemOrder::Descending {
        items.reverse();
    }
    let mut rest = items.as_slice();
    if let Some(after) = &query.after {
        let position = items.iter().position(|item| item.id() == after);
        let missing = || ApiError::invalid("after", format!("there is no item `{after}`"));
        rest = &items[position.ok_or_else(missing)? + 1..];
    }
    let data = rest[..rest.len().min(query.limit)].to_vec();
    let list = ItemList {
        object: "list",
        first_id: data.first().map(|item| item.id()),
        last_id: data.last().map(|item| item.id()),
        has_more: data.len() < rest.len(),
        data,
    };
    Ok(Json(list).into_response())
}

/// Returns whose responses the request may see.
fn client() -> Client {
    RequestRecord::current().expect("a layer around all routes makes it").client()
}
