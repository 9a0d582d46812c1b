//! A closed loop: so many requests, or conversations, are in flight at any moment.

use super::conversation::LevelContext;
use super::prompt_stock::PromptStock;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Keeps `num_users` requests in flight until the prompts or the level's time run out; those in
/// flight then end.
pub(super) async fn run(level: Arc<LevelContext>, stock: PromptStock, num_users: usize) {
    let stock = Arc::new(stock);
    let mut users = JoinSet::new();
    for _ in 0..num_users {
        let (level, stock) = (Arc::clone(&level), Arc::clone(&stock));
        users.spawn(async move {
            while !level.is_over() {
                let Some((number, prompt)) = stock.next().await else { return };
                level.converse(number, prompt, None).await;
            }
        });
    }
    users.join_all().await;
}
