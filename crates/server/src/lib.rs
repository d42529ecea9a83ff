//! HTTP, WebSocket, MCP.
