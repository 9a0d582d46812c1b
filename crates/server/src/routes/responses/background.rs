//! Responses that go on by themselves: they run on when their request is answered, or when its
//! client leaves the stream.
//!
//! Each counts as a request of its client, and as one in flight, until it ends.

use super::answer::{Answer, Keeping, ended, json, json_answer};
use super::told::{self, ToldEvents};
use crate::client::Client;
use crate::request_record::RequestRecord;
use crate::response_events::{EventWriter, ToldEvent};
use crate::response_store::RunningResponse;
use crate::sse;
use crate::state::AppState;
use crate::wire::responses::event::ResponseEvent;
use axum::response::Response;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{SetOnce, oneshot};

/// Lets an answer run, and answers with the beginning of the response.
pub(super) fn start(mut answer: Answer, keeping: Keeping, record: Arc<RequestRecord>) -> Response {
    let body = json(answer.draft().response());
    run(answer, keeping, record, None);
    json_answer(body)
}

/// Lets an answer run, and answers with its events as they come.
pub(super) fn start_stream(
    answer: Answer,
    keeping: Keeping,
    record: Arc<RequestRecord>,
    ping_interval: Duration,
) -> Response {
    let writer = EventWriter::new();
    let events = Arc::clone(writer.log()).read(None).expect("every log has a beginning");
    run(answer, keeping, record, Some(writer));
    told::response(ToldEvents { events, record: None }, ping_interval)
}

/// Lets an answer run, and has its events told where there is a `writer`.
fn run(
    mut answer: Answer,
    keeping: Keeping,
    record: Arc<RequestRecord>,
    writer: Option<EventWriter>,
) {
    let Keeping { state, client, input } = keeping;
    let response = answer.draft().response().clone();
    let id = response.id.clone();
    let (cancel, cancelled) = oneshot::channel();
    let (cancel, end) = (Some(cancel), Arc::new(SetOnce::new()));
    let running =
        RunningResponse { response, record: Arc::clone(&record), cancel, end: Arc::clone(&end) };
    let log = writer.as_ref().map(|writer| Arc::clone(writer.log()));
    state.responses().keep_running(client, &id, input, running, log);
    let outlet = Outlet { state, client, id, writer };
    outlet.tell(answer.draft().take_events());
    tokio::spawn(async move {
        tokio::select! {
            result = answer.run(&record, |events| outlet.tell(events)) => {
                if let Err(error) = result {
                    answer.draft().fail(&error);
                }
            }
            // Its sender is only ever dropped.
            _ = cancelled => answer.draft().cancel(),
        }
        // Gives back the memory and the client's place before anybody can see the end.
        let mut draft = answer.into_draft();
        let events = draft.take_events();
        let response = draft.response();
        let body = json(response);
        outlet.state.responses().end(client, &outlet.id, ended(response, &body));
        outlet.tell(events);
        // Nobody else sets it.
        let _ = end.set(body);
    });
}

/// Where the events of a response go.
struct Outlet {
    state: AppState,
    client: Client,
    id: String,
    /// `None`: nobody can ask for them.
    writer: Option<EventWriter>,
}

impl Outlet {
    fn tell(&self, events: Vec<ResponseEvent>) {
        let Some(writer) = &self.writer else { return };
        for event in events {
            let told = ToldEvent { name: event.name, data: sse::json(&event).into() };
            self.state.responses().tell(self.client, &self.id, writer, told);
        }
    }
}
