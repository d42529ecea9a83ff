//! The channels of a kernel: ZeroMQ on the box's own loopback, every message signed with a key that only the kernel was told.
//!
//! What a kernel sends is taken as it comes: header and parent have to be there, the content is looked into by whoever knows
//! what it should be. Kernels of many makers leave out this and that, and a result that a kernel can make is not to fail for
//! a shape that a library of ours does not know.

use std::net::Ipv4Addr;
use std::pin::Pin;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use jupyter_protocol::{
    ConnectionInfo, ExecuteRequest, Header, InputReply, InterruptRequest, JupyterMessage,
    JupyterMessageContent, KernelInfoRequest,
};
use jupyter_zmq_client::{
    ClientIoPubConnection, Connection, DealerRecvConnection, DealerSendConnection, RawMessage,
};
use serde_json::Value;
use tokio::net::TcpStream;
use zeromq::{Socket, SocketEvent, SocketRecv, ZmqMessage};

/// Between two looks whether a kernel that starts listens yet. Nobody tells.
const LISTENS_AGAIN: Duration = Duration::from_millis(5);

/// What a client cannot do without.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Where a message came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Shell,
    Iopub,
    Stdin,
    Control,
}

/// A message of the kernel's.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) channel: Channel,
    pub(crate) kind: String,
    /// The number of the request that it belongs to.
    pub(crate) parent: String,
    /// Null, if it was no JSON that we can read.
    pub(crate) content: Value,
    /// Of the message itself, for who answers it.
    header: Option<Header>,
}

/// What we say to the kernel.
pub(crate) struct Mouth {
    shell: DealerSendConnection,
    stdin: DealerSendConnection,
    control: DealerSendConnection,
}

/// What we hear of it.
pub(crate) struct Ears {
    shell: DealerRecvConnection,
    stdin: DealerRecvConnection,
    control: DealerRecvConnection,
    iopub: ClientIoPubConnection,
    /// What becomes of the connections of shell, iopub and stdin.
    fates: [Fate; 3],
}

/// News of one connection.
type Fate = Pin<Box<dyn Stream<Item = SocketEvent>>>;

/// Connects to a kernel that starts, as soon as it listens.
pub(crate) async fn connect(info: &ConnectionInfo) -> Result<(Mouth, Ears)> {
    let session = info.key.chars().rev().take(32).collect::<String>();
    let failed = |e: jupyter_zmq_client::RuntimeError| format!("the kernel takes no connection: {e}");
    let identity = jupyter_zmq_client::peer_identity_for_session(&session).map_err(failed)?;
    for port in [info.shell_port, info.iopub_port, info.stdin_port, info.control_port] {
        listens(port).await;
    }
    let mut iopub =
        jupyter_zmq_client::create_client_iopub_connection(info, "", &session).await.map_err(failed)?;
    let mut shell =
        jupyter_zmq_client::create_client_shell_connection_with_identity(info, &session, identity.clone())
            .await
            .map_err(failed)?;
    let mut stdin =
        jupyter_zmq_client::create_client_stdin_connection_with_identity(info, &session, identity)
            .await
            .map_err(failed)?;
    let control =
        jupyter_zmq_client::create_client_control_connection(info, &session).await.map_err(failed)?;
    let fates: [Fate; 3] = [
        Box::pin(shell.socket.monitor()),
        Box::pin(iopub.socket.monitor()),
        Box::pin(stdin.socket.monitor()),
    ];
    let ((shell_out, shell), (stdin_out, stdin)) = (shell.split(), stdin.split());
    let (control_out, control) = control.split();
    let mouth = Mouth { shell: shell_out, stdin: stdin_out, control: control_out };
    Ok((mouth, Ears { shell, stdin, control, iopub, fates }))
}

/// Waits until somebody listens on a port. The library itself would look again after ever longer times.
async fn listens(port: u16) {
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
        tokio::time::sleep(LISTENS_AGAIN).await;
    }
}

impl Mouth {
    /// Asks what the kernel is. The number of the request.
    pub(crate) async fn ask_what_it_is(&mut self) -> Result<String> {
        say(&mut self.shell, KernelInfoRequest {}, None).await
    }

    /// Has code run. The number of the request.
    pub(crate) async fn execute(&mut self, code: String) -> Result<String> {
        let request = ExecuteRequest { allow_stdin: true, ..ExecuteRequest::new(code) };
        say(&mut self.shell, request, None).await
    }

    /// Has what runs interrupted.
    pub(crate) async fn interrupt(&mut self) -> Result<String> {
        say(&mut self.control, InterruptRequest {}, None).await
    }

    /// Answers a question for a line.
    pub(crate) async fn answer(&mut self, question: &Heard, line: String) -> Result<String> {
        let reply = InputReply { value: line, ..InputReply::default() };
        say(&mut self.stdin, reply, question.header.clone()).await
    }
}

async fn say(
    connection: &mut DealerSendConnection,
    content: impl Into<JupyterMessageContent>,
    parent: Option<Header>,
) -> Result<String> {
    let mut message = JupyterMessage::new(content, None);
    message.parent_header = parent;
    let id = message.header.msg_id.clone();
    connection.send(message).await.map_err(|e| format!("the kernel cannot be asked: {e}"))?;
    Ok(id)
}

impl Ears {
    /// The next message. An error: the kernel cannot be understood any more, and why. One that is not waited for to the end is
    /// not lost. What was written comes before what ended it.
    pub(crate) async fn next(&mut self) -> Result<Heard> {
        let Ears { shell, stdin, control, iopub, fates: [shell_fate, iopub_fate, stdin_fate] } = self;
        tokio::select! {
            biased;
            message = iopub.socket.recv() => heard(Channel::Iopub, message, iopub),
            message = shell.socket.recv() => heard(Channel::Shell, message, shell),
            message = stdin.socket.recv() => heard(Channel::Stdin, message, stdin),
            message = control.socket.recv() => heard(Channel::Control, message, control),
            () = closed(shell_fate) => Err("the kernel has closed its shell channel".into()),
            () = closed(iopub_fate) => Err("the kernel has closed its iopub channel".into()),
            () = closed(stdin_fate) => Err("the kernel has closed its stdin channel".into()),
        }
    }
}

/// Waits until the other side of a connection is gone.
async fn closed(fate: &mut Fate) {
    while let Some(event) = fate.next().await {
        if matches!(event, SocketEvent::Disconnected(_)) {
            return;
        }
    }
    std::future::pending().await
}

fn heard<S>(
    channel: Channel,
    message: zeromq::ZmqResult<ZmqMessage>,
    connection: &Connection<S>,
) -> Result<Heard> {
    let strange = |why: String| format!("the kernel sent what is no message of Jupyter's: {why}");
    let message = message.map_err(|e| strange(e.to_string()))?;
    let raw = RawMessage::from_multipart(message, &connection.mac).map_err(|e| match e {
        jupyter_zmq_client::RuntimeError::VerifyError(_)
        | jupyter_zmq_client::RuntimeError::DecodeError(_) => {
            "the kernel sent a message that is not signed with its key".to_owned()
        }
        other => strange(other.to_string()),
    })?;
    let [header, parent, _, content, ..] = raw.jparts.as_slice() else {
        return Err(strange("it has too few parts".into()));
    };
    let said: Value = serde_json::from_slice(header).map_err(|e| strange(e.to_string()))?;
    let Some(kind) = said.get("msg_type").and_then(Value::as_str) else {
        return Err(strange("it has no type".into()));
    };
    let parent: Value = serde_json::from_slice(parent).unwrap_or_default();
    let parent = parent.get("msg_id").and_then(Value::as_str).unwrap_or_default();
    // Python writes half characters that are no UTF-8.
    let content = serde_json::from_str(&String::from_utf8_lossy(content)).unwrap_or_default();
    Ok(Heard {
        channel,
        kind: kind.to_owned(),
        parent: parent.to_owned(),
        content,
        header: serde_json::from_value(said).ok(),
    })
}
