//! Why a stored response cannot be had.

use axum::http::StatusCode;

/// What a client is told about a response that it asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoredRefusal {
    /// No response of this client has this id, or has it still.
    NotFound { id: String },
    /// The same of one that a conversation was to go on from.
    PreviousNotFound { id: String },
    /// A conversation cannot go on from what still runs.
    PreviousStillRuns { id: String },
    /// What its client waits for ends when the client leaves.
    NotInBackground { id: String },
    /// Events are kept of responses that were created as streams in the background.
    NotStreamed { id: String },
    /// The events of this response made room for others.
    EventsNotFound { id: String },
}

impl StoredRefusal {
    /// Returns the status code that answers with this refusal.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::NotFound { .. } | Self::EventsNotFound { .. } => StatusCode::NOT_FOUND,
            Self::PreviousNotFound { .. }
            | Self::PreviousStillRuns { .. }
            | Self::NotInBackground { .. }
            | Self::NotStreamed { .. } => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns what went wrong and what to do.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::NotFound { id } => format!(
                "there is no response `{id}`: it never was, was not stored, was deleted, or made \
                 room for later ones"
            ),
            Self::PreviousNotFound { id } => format!(
                "there is no response `{id}` to go on from: it was not stored, was deleted, or \
                 made room for later ones; send the whole conversation as `input`"
            ),
            Self::PreviousStillRuns { id } => {
                format!("the response `{id}` still runs; wait for its end")
            }
            Self::NotInBackground { id } => format!(
                "the response `{id}` does not run in the background; close the connection to end \
                 one that does not"
            ),
            Self::NotStreamed { id } => format!(
                "the response `{id}` was not created with both `background` and `stream`, so its \
                 events are not kept; ask for it without `stream`"
            ),
            Self::EventsNotFound { id } => format!(
                "the events of the response `{id}` made room for others; ask for it without \
                 `stream`"
            ),
        }
    }

    /// Returns the field at fault.
    pub(crate) fn param(&self) -> &'static str {
        match self {
            Self::NotFound { .. } | Self::NotInBackground { .. } => "response_id",
            Self::NotStreamed { .. } | Self::EventsNotFound { .. } => "stream",
            Self::PreviousNotFound { .. } | Self::PreviousStillRuns { .. } => {
                "previous_response_id"
            }
        }
    }

    /// Returns the error's `code`.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::NotFound { .. } => "response_not_found",
            Self::PreviousNotFound { .. } => "previous_response_not_found",
            Self::PreviousStillRuns { .. } => "previous_response_still_runs",
            Self::NotInBackground { .. } => "response_not_in_background",
            Self::NotStreamed { .. } => "response_not_streamed",
            Self::EventsNotFound { .. } => "response_events_not_found",
        }
    }
}
