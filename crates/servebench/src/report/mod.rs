//! What a run found, for people: a picture, a page, text to paste.

mod caption;
pub mod card;
pub mod html;
mod number;
pub mod share;
