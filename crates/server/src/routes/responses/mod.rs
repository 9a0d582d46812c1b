//! `POST /v1/responses` and `POST /v1/responses/input_tokens`: OpenAI's Responses API.
//!
//! A request is planned as the chat request that asks for the same; what is told of the generation
//! has a form of its own, and is kept for later requests. [`stored`] has the routes about what is
//! kept, [`told`] the streams of it.

mod answer;
mod background;
mod draft;
mod stored;
mod told;

use super::chat::{self, ChatPlan};
use crate::client::Client;
use crate::generation::Generation;
use crate::json_body::{self, RawBody};
use crate::state::{AppState, unix_time};
use crate::submission::Arrival;
use crate::validation::Delivery;
use crate::wire::error::ApiError;
use crate::wire::responses::item::{Item, ItemIds};
use crate::wire::responses::request::{AskedResponse, ResponsesRequest, Storing, own_name};
use crate::wire::responses::response::{InputTokens, ResponseObject, ResponseStatus};
use crate::wire::responses::settings::ResponseSettings;
use crate::wire::tools::CallIds;
use answer::{Answer, Keeping};
use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use draft::Draft;
use std::sync::Arc;

pub(super) use stored::{cancel, delete, input_items, show};

/// A validated body.
struct Plan {
    chat: ChatPlan,
    settings: ResponseSettings,
    items: Vec<Arc<Item>>,
    ids: ItemIds,
}

/// Answers a conversation: whole, as a stream, or in the background.
pub(super) async fn create(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Response, ApiError> {
    let arrival = Arrival::now(&state)?;
    let limit_bytes = state.config().max_body_bytes;
    let num_body_bytes = body.as_ref().map_or(0, |body| body.len());
    let id = state.response_id("resp");
    let (serving, record) = (arrival.serving(), Arc::clone(&arrival.record));
    let (planning, mut ids) = (state.clone(), ItemIds::new(&id));
    let client = record.client();
    let Plan { mut chat, settings, items, ids } =
        super::off_the_reactor(num_body_bytes, move || {
            let body: ResponsesRequest = json_body::parse(&headers, body, limit_bytes)?;
            let AskedResponse { chat, settings, items } = read(&planning, client, body, &mut ids)?;
            let chat =
                chat::plan(&serving, chat, planning.seeds().next_seed()).map_err(own_name)?;
            Ok(Plan { chat, settings, items, ids })
        })
        .await?;
    chat.compile_rule(&arrival.serving()).await.map_err(own_name)?;
    let ChatPlan { model, delivery, call_id_style, submission, .. } = chat;
    let generation = Generation::start(arrival, submission).await?;
    let call_ids = CallIds::new(&id, call_id_style);
    let (store, background) = (settings.store, settings.background);
    let response = ResponseObject {
        id: id.replace('-', "_"),
        object: "response",
        created_at: unix_time(),
        status: if background { ResponseStatus::Queued } else { ResponseStatus::InProgress },
        completed_at: None,
        error: None,
        incomplete_details: None,
        model,
        output: Vec::new(),
        usage: None,
        settings,
    };
    let ping_interval = state.config().ping_interval;
    let keeping = store.then_some(Keeping { state, client, input: items });
    let answer = Answer::new(generation, Draft::new(response, ids, call_ids));
    match (delivery, keeping) {
        (Delivery::Whole, Some(keeping)) if background => {
            Ok(background::start(answer, keeping, record))
        }
        (Delivery::Stream(_), Some(keeping)) if background => {
            Ok(background::start_stream(answer, keeping, record, ping_interval))
        }
        (Delivery::Whole, keeping) => answer.whole(keeping).await,
        (Delivery::Stream(_), keeping) => Ok(answer.stream(keeping, ping_interval)),
    }
}

/// Counts the tokens that a response would be given, whether they fit the context or not.
pub(super) async fn count_input_tokens(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Json<InputTokens>, ApiError> {
    let arrival = Arrival::now(&state)?;
    let limit_bytes = state.config().max_body_bytes;
    let num_body_bytes = body.as_ref().map_or(0, |body| body.len());
    let (serving, client) = (arrival.serving(), arrival.record.client());
    let count = super::off_the_reactor(num_body_bytes, move || {
        let body: ResponsesRequest = json_body::parse(&headers, body, limit_bytes)?;
        // Nothing is told of the items, so their ids matter to nobody.
        let asked = read(&state, client, body, &mut ItemIds::new(""))?;
        chat::count_tokens(&serving, asked.chat).map_err(own_name)
    });
    Ok(Json(InputTokens { object: "response.input_tokens", input_tokens: count.await? }))
}

/// Reads a body, with the conversation that it goes on from.
fn read(
    state: &AppState,
    client: Client,
    body: ResponsesRequest,
    ids: &mut ItemIds,
) -> Result<AskedResponse, ApiError> {
    let responses = state.responses();
    let storing = if responses.is_off() { Storing::Off } else { Storing::Possible };
    let previous = match body.previous_response_id() {
        Some(id) => responses.conversation(client, id)?,
        None => Vec::new(),
    };
    body.read(previous, ids, storing)
}
