//! mock_server/mod
