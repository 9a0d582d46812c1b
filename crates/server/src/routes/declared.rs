//! Routes and the paths that they are declared under.
//!
//! A router does not tell its paths; the API's document has to name all of them.

use crate::state::AppState;
use axum::Router;
use axum::routing::MethodRouter;

/// A router that knows its paths.
#[derive(Default)]
pub(super) struct DeclaredRoutes {
    /// The routes.
    pub(super) router: Router<AppState>,
    /// Their paths, as the router has them.
    pub(super) paths: Vec<&'static str>,
}

impl DeclaredRoutes {
    /// Adds a route.
    pub(super) fn route(mut self, path: &'static str, methods: MethodRouter<AppState>) -> Self {
        self.paths.push(path);
        self.router = self.router.route(path, methods);
        self
    }
}
