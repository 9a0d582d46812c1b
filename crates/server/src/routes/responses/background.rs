//! Responses that nobody waits for: they run on when their request is answered.
//!
//! Each counts as a request of its client, and as one in flight, until it ends.

use super::answer::{Answer, Keeping, ended, json, json_answer};
use crate::request_record::RequestRecord;
use crate::response_store::RunningResponse;
use crate::wire::responses::response::ResponseStatus;
use axum::response::Response;
use std::sync::Arc;
use tokio::sync::{SetOnce, oneshot};

/// Lets an answer run, and answers with the beginning of the response.
pub(super) fn start(mut answer: Answer, keeping: Keeping, record: Arc<RequestRecord>) -> Response {
    let Keeping { state, client, input } = keeping;
    let mut response = answer.draft().response().clone();
    response.status = ResponseStatus::Queued;
    let (id, body) = (response.id.clone(), json(&response));
    let (cancel, cancelled) = oneshot::channel();
    let end = Arc::new(SetOnce::new());
    let cancel = Some(cancel);
    let running = RunningResponse { response, record, cancel, end: Arc::clone(&end) };
    state.responses().keep_running(client, &id, input, running);
    tokio::spawn(async move {
        tokio::select! {
            result = answer.finish() => if let Err(error) = result {
                answer.draft().fail(&error);
            },
            // Its sender is only ever dropped.
            _ = cancelled => answer.draft().cancel(),
        }
        // Gives back the memory and the client's place before anybody can see the end.
        let draft = answer.into_draft();
        let response = draft.response();
        let body = json(response);
        state.responses().end(client, &id, ended(response, &body));
        // Nobody else sets it.
        let _ = end.set(body);
    });
    json_answer(body)
}
