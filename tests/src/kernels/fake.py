"""A kernel that lies. It answers what it is, and to code it says what no kernel says."""
import hashlib
import hmac
import json
import socket
import struct
import sys
import threading
import uuid

import zmq

info = json.load(open(sys.argv[1]))
how = sys.argv[2]


def babble(port):
    server = socket.create_server(('127.0.0.1', port))
    while True:
        peer = server.accept()[0]
        try:
            peer.sendall(b'GET / HTTP/1.1\r\n' * 10)
        except OSError:
            pass


if how == 'garbage':
    for name in ('shell_port', 'iopub_port', 'stdin_port', 'control_port'):
        threading.Thread(target=babble, args=(info[name],)).start()
    threading.Event().wait()


def bound(kind, port):
    made = zmq.Context.instance().socket(kind)
    made.bind('tcp://127.0.0.1:%d' % info[port])
    return made


def parts(kind, parent, content, key=info['key']):
    header = {'msg_id': uuid.uuid4().hex, 'msg_type': kind, 'session': 's', 'username': 'u', 'version': '5.3',
              'date': '2026-01-01T00:00:00Z'}
    signed = [json.dumps(part).encode() for part in (header, parent, {}, content)]
    mac = hmac.new(key.encode(), digestmod=hashlib.sha256)
    for part in signed:
        mac.update(part)
    return [b'<IDS|MSG>', mac.hexdigest().encode()] + signed


class Liar:
    """An iopub channel by hand, that can say that it is about to send more than there is."""

    def __init__(self):
        self.peer = None
        self.server = socket.create_server(('127.0.0.1', info['iopub_port']))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            peer, _ = self.server.accept()
            greeting = b'\xff' + bytes(8) + b'\x7f\x03\x00NULL' + bytes(16) + b'\x00' + bytes(31)
            try:
                peer.sendall(greeting)
                if len(peer.recv(64, socket.MSG_WAITALL)) < 64:
                    continue
                ready = b'\x05READY\x0bSocket-Type' + struct.pack('>I', 3) + b'PUB'
                peer.sendall(b'\x04' + bytes([len(ready)]) + ready)
                peer.recv(1000)
            except OSError:
                continue
            self.peer = peer

    def send_multipart(self, frames):
        while self.peer is None:
            pass
        for at, frame in enumerate(frames):
            more = 0 if at == len(frames) - 1 else 1
            self.peer.sendall(bytes([more | 2]) + struct.pack('>Q', len(frame)) + frame)

    def lie(self):
        self.peer.sendall(b'\x02' + struct.pack('>Q', 1 << 50) + b'x')


shell = bound(zmq.ROUTER, 'shell_port')
stdin, control = bound(zmq.ROUTER, 'stdin_port'), bound(zmq.ROUTER, 'control_port')
iopub = Liar() if how == 'huge' else bound(zmq.PUB, 'iopub_port')
while True:
    *route, _, _, header, _, _, content = shell.recv_multipart()
    header = json.loads(header)

    def tell(kind, content, **more):
        iopub.send_multipart([b'x'] + parts(kind, header, content, **more))

    if header['msg_type'] == 'kernel_info_request':
        tell('status', {'execution_state': 'busy'})
        tell('status', {'execution_state': 'idle'})
        reply = {'status': 'ok', 'implementation': 'liar', 'implementation_version': '\n1\x1b' + 'x' * 1000}
        shell.send_multipart(route + parts('kernel_info_reply', header, reply))
        continue
    tell('status', {'execution_state': 'busy'})
    tell('execute_input', {'code': '', 'execution_count': 1})
    tell('stream', {'name': 'stdout', 'text': 'before\n'})
    if how == 'unsigned':
        tell('stream', {'name': 'stdout', 'text': 'forged\n'}, key='another')
    elif how == 'huge':
        iopub.lie()
    elif how == 'shapeless':
        for content in (None, [], {}, {'name': 7, 'text': []}, {'data': 'x', 'metadata': 1}, {'data': {'a': None}}):
            for kind in ('stream', 'display_data', 'execute_result', 'update_display_data', 'status', 'comm_open'):
                tell(kind, content)
        shell.send_multipart(route + parts('execute_reply', header, {'status': 'ok'}))
        tell('status', {'execution_state': 'idle'})
    elif how == 'mute':
        # It never says that it is done.
        shell.send_multipart(route + parts('execute_reply', header, {'status': 'ok'}))
