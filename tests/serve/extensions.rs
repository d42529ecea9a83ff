//! What this server adds to the protocol.

use std::io::Read;

use glasshouse_tests::{House, Mode};
use serde_json::{Value, json};

use crate::stage::{Answer, Server, execd, texts};

fn of(id: &str, path: &str) -> String {
    format!("/v1/sandboxes/{id}{path}")
}

/// Runs a line to its end.
fn exec(server: &Server, id: &str, line: &str) -> Value {
    let answer = server.send("POST", &of(id, "/exec"), &json!({ "command": line }));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[test]
fn exec_tells_a_commands_end_in_one_answer() {
    let server = Server::new();
    let id = server.create(json!({}));
    let ran = exec(&server, &id, "echo out; echo err >&2; exit 3");
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&ran["exitCode"], &ran["exit"]["code"]), (&json!(3), &json!(3)));
    assert_eq!(ran["truncated"], false);
    let ran = exec(&server, &id, r"printf '\377'");
    assert_eq!(ran["stdoutBase64"], "/w==");
    let late = json!({ "command": "cat /dev/zero > /dev/null", "timeout": 50 });
    assert_eq!(server.send("POST", &of(&id, "/exec"), &late).json()["exit"]["kind"], "timed_out");
    let large = exec(&server, &id, "head -c 30000000 /dev/zero | tr '\\0' x");
    assert_eq!((&large["truncated"], &large["stdoutBytes"]), (&json!(true), &json!(30_000_000)));
    assert!(large["stdout"].as_str().unwrap().contains("bytes were left out here"));
    let background = json!({ "command": "true", "background": true });
    server.send("POST", &of(&id, "/exec"), &background).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    server.send("POST", &of("nonesuch", "/exec"), &json!({})).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
}

#[test]
fn tools_are_listed_and_called() {
    let server = Server::new();
    let id = server.create(json!({}));
    let listed = server.get(&of(&id, "/tools")).json();
    let names = |listed: &Value| -> Vec<String> {
        let tools = listed["tools"].as_array().unwrap().iter();
        tools.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(names(&listed).contains(&"shell".to_owned()), "{listed}");
    let mcp = server.get(&of(&id, "/tools?format=mcp")).json();
    assert!(mcp["tools"][0]["inputSchema"].is_object(), "{mcp}");
    let openai = server.get(&of(&id, "/tools?format=openai")).json();
    assert_eq!(openai["tools"][0]["type"], "function");
    server.get(&of(&id, "/tools?format=x")).assert_error(400, "SANDBOX::INVALID_PARAMETER");

    let written = json!({ "path": "/tmp/f", "content": "hello" });
    assert_eq!(server.send("POST", &of(&id, "/tools/file_write"), &written).json()["success"], true);
    let ran =
        server.send("POST", &of(&id, "/tools/shell"), &json!({ "command": "cat /tmp/f; exit 4" })).json();
    assert_eq!(
        (&ran["output"], &ran["exit_code"], &ran["success"]),
        (&json!("hello"), &json!(4), &json!(false))
    );
    let unknown = server.send("POST", &of(&id, "/tools/nonesuch"), &json!({})).json();
    assert_eq!(unknown["success"], false, "an agent is to read that there is no such tool: {unknown}");
}

#[test]
fn code_runs_where_it_is_remembered() {
    let server = Server::new();
    let id = server.create(json!({}));
    let made = json!({ "language": "python", "id": "mine", "env": { "COLOUR": "blue" } });
    let made = server.send("POST", &of(&id, "/contexts"), &made);
    assert_eq!((made.status, &made.json()["state"]["kind"]), (201, &json!("idle")), "{made:?}");
    let run = |body: Value| server.send("POST", &of(&id, "/contexts/mine/run"), &body);
    run(json!({ "code": "import os\nx = os.environ['COLOUR']" }));
    let ran = run(json!({ "code": "print(input())\nx", "stdin": "fed\n" })).json();
    assert_eq!((&ran["stdout"], &ran["exitCode"]), (&json!("fed\n"), &json!(0)), "{ran}");
    assert_eq!(ran["results"], json!([{ "value": { "data": { "text/plain": "'blue'" } } }]));
    let late = run(json!({ "code": "while True: pass", "timeoutMs": 200 })).json();
    assert_eq!(
        (&late["exit"]["kind"], &late["results"][0]["error"]["name"]),
        (&json!("timed_out"), &json!("KeyboardInterrupt"))
    );
    assert_eq!(server.get(&of(&id, "/contexts/mine")).json()["runs"], 3);
    assert_eq!(server.send("POST", &of(&id, "/contexts/mine/interrupt"), &json!({})).status, 204);
    assert_eq!(server.send("POST", &of(&id, "/contexts/mine/restart"), &json!({})).json()["runs"], 0);
    assert_eq!(run(json!({ "code": "x" })).json()["results"][0]["error"]["name"], "NameError");
    assert_eq!(server.get(&of(&id, "/contexts")).json()["contexts"].as_array().unwrap().len(), 1);
    assert_eq!(server.send("DELETE", &of(&id, "/contexts/mine"), &json!({})).status, 204);
    assert_eq!(run(json!({ "code": "x" })).status, 404);
    assert_eq!(server.send("POST", &of(&id, "/contexts"), &json!({ "language": "cobol" })).status, 400);
    assert_eq!(server.send("POST", &of(&id, "/contexts"), &json!({ "langauge": "bash" })).status, 400);
    assert_eq!(server.send("POST", &of(&id, "/contexts"), &json!({ "env": { "": "" } })).status, 400);
}

#[test]
fn a_context_that_is_lost_is_told_as_such() {
    let server = Server::new();
    let id = server.create(json!({}));
    let made = json!({ "language": "python", "id": "mine" });
    assert_eq!(server.send("POST", &of(&id, "/contexts"), &made).status, 201);
    let run = |body: Value| server.send("POST", &of(&id, "/contexts/mine/run"), &body).json();
    // A deadline that was heard leaves it alive, and one that was not has killed it: the exit is the same.
    let heard = run(json!({ "code": "while True: pass", "timeoutMs": 200 }));
    assert_eq!((&heard["exit"]["kind"], heard.get("contextLost")), (&json!("timed_out"), None), "{heard}");
    let deaf = "import signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True: pass";
    let deaf = run(json!({ "code": deaf, "timeoutMs": 200, "graceMs": 100 }));
    assert_eq!(deaf["exit"]["kind"], "timed_out", "{deaf}");
    let lost = "its run did not end when its time was up, so it was killed";
    assert_eq!(deaf["contextLost"], lost, "{deaf}");
    assert_eq!(server.send("POST", &of(&id, "/contexts/mine/restart"), &json!({})).status, 200);
    let ended = run(json!({ "code": "import os; os._exit(0)" }));
    assert_eq!(
        (&ended["exitCode"], &ended["contextLost"]),
        (&json!(0), &json!("its interpreter ended with code 0")),
        "{ended}"
    );
}

#[test]
fn code_whose_context_is_lost_ends_with_that_error_and_no_other_end() {
    let server = Server::new();
    let id = server.create(json!({}));
    let run = |code: &str| server.send("POST", &execd(&id, "/code"), &json!({ "code": code })).events();
    let ends = |events: &[Value]| {
        let is_end = |event: &&Value| event["type"] == "error" || event["type"] == "execution_complete";
        events.iter().filter(is_end).cloned().collect::<Vec<_>>()
    };
    let lives = run("v = 1");
    assert_eq!(ends(&lives)[0]["type"], "execution_complete", "{lives:?}");
    let lost = run("import os; os._exit(0)");
    let [end]: [Value; 1] = ends(&lost).try_into().unwrap();
    assert_eq!(
        (&end["error"]["ename"], &end["error"]["evalue"]),
        (&json!("ContextLost"), &json!("its interpreter ended with code 0")),
        "{lost:?}"
    );
    // The next one has a new context, as its caller knows by now.
    let anew = run("v");
    assert_eq!(ends(&anew)[0]["error"]["ename"], "NameError", "{anew:?}");
}

#[test]
fn kernels_run_code_of_their_languages() {
    let dir = match glasshouse_tests::kernels::kernels() {
        Ok(dir) => dir.to_str().unwrap().to_owned(),
        Err(why) => return glasshouse_tests::skip("kernels", &why),
    };
    let house = House::new(Mode::all()[0]);
    let settings = house.path().join("serve.toml");
    std::fs::write(&settings, format!("volumes = [{dir:?}]")).unwrap();
    let settings = settings.to_str().unwrap().to_owned();
    let server = Server::of(house, &["--config", &settings]);
    let volume = json!({ "name": "v", "mountPath": "/kernels", "host": { "path": dir }, "readOnly": true });
    let path = "/tmp/old:/kernels/bin:/usr/bin:/bin";
    let id = server.create(json!({ "volumes": [volume], "env": { "PATH": path } }));
    let made =
        server.send("POST", &of(&id, "/contexts"), &json!({ "language": "jupyter:python3", "id": "nb" }));
    assert_eq!((made.status, &made.json()["interpreter"]), (201, &json!("python3")), "{made:?}");
    let ran =
        server.send("POST", &of(&id, "/contexts/nb/run"), &json!({ "code": "%pwd\nprint(5)\n2" })).json();
    assert_eq!((&ran["stdout"], &ran["exitCode"]), (&json!("5\n"), &json!(0)), "{ran}");
    assert_eq!(ran["results"][0]["value"]["data"]["text/plain"], "2", "{ran}");
    let both = json!({ "language": "jupyter:python3", "interpreter": "bash" });
    assert_eq!(server.send("POST", &of(&id, "/contexts"), &both).status, 400);
    // OpenSandbox names languages. Those that we do not speak ourselves are spoken by kernels, if there are any.
    let made =
        server.send("POST", &execd(&id, "/code/context"), &json!({ "language": "jupyter:bash" })).json();
    assert_eq!(made["language"], "jupyter:bash", "{made}");
    let refused = server.send("POST", &execd(&id, "/code/context"), &json!({ "language": "Java" }));
    refused.assert_error(500, "RUNTIME_ERROR");
    assert!(refused.text().contains("speaks") && refused.text().contains("python3"), "{refused:?}");
    let code = json!({ "code": "echo $((6 * 7))", "context": made });
    let events = server.send("POST", &execd(&id, "/code"), &code).events();
    assert_eq!(texts(&events, "stdout").concat().trim_end(), "42", "{events:?}");
    let listed = server.get(&execd(&id, "/code/contexts?language=jupyter:bash")).json();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    typescript_is_that_of_a_kernel(&server, &id);
}

/// Where Node.js is too old, and a kernel of the box speaks it.
fn typescript_is_that_of_a_kernel(server: &Server, id: &str) {
    let old = "#!/bin/sh\\necho too old >&2; exit 1\\n";
    server.lines(id, &format!("mkdir /tmp/old; printf '{old}' > /tmp/old/node; chmod +x /tmp/old/node"));
    let refused = server.send("POST", &execd(id, "/code/context"), &json!({ "language": "typescript" }));
    refused.assert_error(500, "RUNTIME_ERROR");
    assert!(
        refused.text().contains("too old") && refused.text().contains("nor does a kernel"),
        "{refused:?}"
    );
    let spec = json!({
        "argv": ["/kernels/bin/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "typed", "language": "typescript",
    });
    server.lines(
        id,
        &format!("d=$HOME/.local/share/jupyter/kernels/typed; mkdir -p $d; echo '{spec}' > $d/kernel.json"),
    );
    // It is a Python that says otherwise.
    let code = json!({ "code": "print(type(1))", "context": { "language": "typescript" } });
    for _ in 0..2 {
        let events = server.send("POST", &execd(id, "/code"), &code).events();
        assert_eq!(texts(&events, "stdout").concat().trim_end(), "<class 'int'>", "{events:?}");
    }
    let listed = server.get(&execd(id, "/code/contexts?language=typescript")).json();
    assert_eq!((&listed[0]["language"], listed.as_array().map(Vec::len)), (&json!("typescript"), Some(1)));
}

/// The probe of the SDK: whether a port answers.
const PROBE: &str = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/${JUPYTER_PORT:-44771}' && exit 0 || exit 1";

#[test]
fn a_box_is_ready_at_the_port_that_it_names() {
    let server = Server::new();
    let is_ready = |id: &str, envs: Value| {
        let events = server.run(id, json!({ "command": PROBE, "envs": envs }));
        events.last().unwrap()["type"] == "execution_complete"
    };
    let id = server.create(json!({}));
    assert!(is_ready(&id, json!({})));
    let id = server.create(json!({ "env": { "JUPYTER_PORT": "9999" } }));
    assert!(is_ready(&id, json!({})), "the box's own variables");
    assert!(is_ready(&id, json!({ "JUPYTER_PORT": "9998" })), "the command's");
    server.lines(&id, "mkdir -p $(dirname $EXECD_ENVS); echo JUPYTER_PORT=9997 >> $EXECD_ENVS");
    assert!(is_ready(&id, json!({})), "those of later commands");
    let ports = server.get(&of(&id, "/ports")).json();
    let ports: Vec<u64> =
        ports["ports"].as_array().unwrap().iter().map(|port| port["port"].as_u64().unwrap()).collect();
    assert!(!ports.contains(&44771), "{ports:?}");
    // An entrypoint that opens it itself is not ready before that.
    let own = "until test -e /tmp/go; do sleep 0.05; done; exec -a jupyter python3 -m http.server -b 127.0.0.1 44771";
    let id = server.create(json!({ "entrypoint": ["bash", "-c", own] }));
    assert!(!is_ready(&id, json!({})));
    server.lines(&id, "touch /tmp/go");
    while !is_ready(&id, json!({})) {}
    assert!(
        !server
            .lines(&id, "exec 3<>/dev/tcp/127.0.0.1/44771; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3")
            .is_empty()
    );
}

/// Reads until what was asked for has said that it has begun.
fn await_begun(stream: &mut impl Read) {
    let mut seen = Vec::new();
    while !seen.windows(5).any(|five| five == b"begun") {
        let mut piece = [0; 4096];
        let length = stream.read(&mut piece).unwrap();
        assert!(length > 0);
        seen.extend_from_slice(&piece[..length]);
    }
}

#[test]
fn code_goes_on_when_the_caller_of_it_leaves() {
    let server = Server::new();
    let id = server.create(json!({}));
    let code = "import time\nprint('begun')\ntime.sleep(0.3)\nx = open('/tmp/went-on', 'w').write('x')";
    let body = json!({ "code": code }).to_string();
    let json = [("content-type", "application/json")];
    let mut stream = server.open("POST", &execd(&id, "/code"), &json, body.as_bytes());
    await_begun(&mut stream);
    drop(stream);
    while server.lines(&id, "cat /tmp/went-on 2>/dev/null; true").is_empty() {}
    // Its context has not lost what it did, and takes more.
    let mut events = Vec::new();
    while texts(&events, "stdout").is_empty() {
        let answer = server.send("POST", &execd(&id, "/code"), &json!({ "code": "print(x)" }));
        events = if answer.status == 200 { answer.events() } else { Vec::new() };
    }
    assert_eq!(texts(&events, "stdout"), ["1"]);
}

#[test]
fn contexts_are_warm_where_a_server_says_so() {
    let house = House::new(Mode::all()[0]);
    let settings = house.path().join("serve.toml");
    std::fs::write(&settings, "warm_contexts = true").unwrap();
    let settings = settings.to_str().unwrap().to_owned();
    let (warm, cold) = (Server::of(house, &["--config", &settings]), Server::new());
    let look = "import os, sys\nfor word in (os.getcwd(), sys.argv, sys.path, os.getppid(), sorted(globals()), os.environ['X'], \
                os.environ['OPENSANDBOX_ID'] != ''): print(word)\nsys.version";
    let tell = |server: &Server, is_warm: bool| {
        let id = server.create(json!({ "env": { "X": "y" } }));
        let made = server.send("POST", &execd(&id, "/code/context"), &json!({ "language": "python" })).json();
        let context = server.get(&of(&id, &format!("/contexts/{}", made["id"].as_str().unwrap()))).json();
        // A box without cgroups says why it is not.
        assert!(context["warm"] == is_warm || context["cold"].is_string(), "{context}");
        let events =
            server.send("POST", &execd(&id, "/code"), &json!({ "code": look, "context": made })).events();
        assert_eq!(events.last().unwrap()["type"], "execution_complete", "{events:?}");
        let result = events.iter().find(|event| event["type"] == "result").unwrap();
        (texts(&events, "stdout"), result["results"].clone())
    };
    assert_eq!(tell(&warm, true), tell(&cold, false));
}

#[test]
fn boxes_fork_and_go_back() {
    let server = Server::new();
    let id = server.create(json!({ "timeout": 3600, "metadata": { "a": "b" } }));
    let digest = |id: &str| server.get(&of(id, "/digest")).json()["digest"].clone();
    let began = digest(&id);
    server.lines(&id, "echo one > /root/file");
    let snapshot = server.send("POST", &of(&id, "/snapshots"), &json!({})).json()["id"].clone();

    let forks = server.send("POST", &of(&id, "/fork"), &json!({ "count": 2 }));
    assert_eq!(forks.status, 201, "{forks:?}");
    let forks = forks.json();
    let fork = forks["items"][0]["id"].as_str().unwrap();
    assert_ne!(forks["items"][1]["id"], *fork);
    assert_eq!(forks["items"][0]["metadata"], json!({ "a": "b" }));
    let expires = server.get(&of(&id, "")).json()["expiresAt"].clone();
    assert_eq!(server.get(&of(fork, "")).json()["expiresAt"], expires);
    assert_eq!(server.lines(fork, "cat /root/file; echo two > /root/file"), ["one"]);
    assert_eq!(server.lines(&id, "cat /root/file"), ["one"]);

    let changes = server.get(&of(fork, &format!("/diff?content=true&against={id}"))).json();
    let changed = changes["changes"].as_array().unwrap().iter().find(|change| change["path"] == "/root/file");
    let lines = changed.unwrap()["content"]["diff"].as_str().unwrap();
    assert!(lines.contains("-one\n+two"), "{lines}");

    server.lines(&id, "rm /root/file");
    let back = server.send("POST", &of(&id, "/restore"), &json!({ "snapshotId": snapshot }));
    assert_eq!((back.status, &back.json()["id"]), (200, &json!(id)));
    assert_eq!(server.lines(&id, "cat /root/file"), ["one"]);
    assert_eq!(server.send("POST", &of(&id, "/reset"), &json!({})).status, 200);
    assert_eq!(digest(&id), began);
    assert_eq!(server.get(&of(&id, "/diff")).json()["changes"], json!([]));
    // Nor can what is no name of a file at all be one.
    for none in ["nonesuch", "..", "a\0b", &"long".repeat(100)] {
        let other = json!({ "snapshotId": none });
        server.send("POST", &of(&id, "/restore"), &other).assert_error(404, "SNAPSHOT::NOT_FOUND");
    }
    server
        .send("POST", &of(&id, "/fork"), &json!({ "count": 0 }))
        .assert_error(400, "SANDBOX::INVALID_PARAMETER");
    for none in ["nonesuch", "a%00b", &"long".repeat(100)] {
        let against = of(&id, &format!("/diff?against={none}"));
        server.get(&against).assert_error(404, "SNAPSHOT::NOT_FOUND");
    }
    for none in ["a%00b", &"long".repeat(100), "%2e%2e"] {
        server.get(&of(none, "")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
        server.get(&format!("/v1/snapshots/{none}")).assert_error(404, "SNAPSHOT::NOT_FOUND");
    }
}

#[test]
fn a_reset_starts_the_entrypoint_anew_and_does_not_end_the_box() {
    let server = Server::new();
    let id =
        server.create(json!({ "entrypoint": ["sh", "-c", "echo begun >> /tmp/log; exec sleep 1000000"] }));
    let begun = |times: usize| {
        while server.get(&execd(&id, "/files/download?path=/tmp/log")).body.len() != times * "begun\n".len() {
        }
    };
    begun(1);
    server.lines(&id, "rm /tmp/log");
    assert_eq!(server.send("POST", &of(&id, "/reset"), &json!({})).status, 200);
    begun(1);
    assert_eq!(server.get(&of(&id, "")).json()["status"]["state"], "Running");
}

#[test]
fn the_record_is_read_and_checked_and_outlives_the_box() {
    let server = Server::new();
    let id = server.create(json!({}));
    exec(&server, &id, "echo on-record '<script>'");
    let read = |server: &Server| {
        let trace = server.get(&of(&id, "/trace"));
        assert_eq!((trace.status, trace.header("content-type")), (200, Some("application/x-ndjson")));
        let text = trace.text();
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (text.contains("on-record"), events.len())
    };
    let (there, events) = read(&server);
    assert!(there && events >= 2);
    let page = server.get(&of(&id, "/trace?format=html"));
    assert!(page.text().contains("on-record") && !page.text().contains("<script>"));
    assert!(page.header("content-security-policy").unwrap().contains("default-src 'none'"));
    assert_eq!(server.request("DELETE", &of(&id, ""), &[], b"").status, 204);
    assert!(read(&server).0);
    let report = server.get(&of(&id, "/trace/verify")).json();
    assert_eq!(report["ok"], true, "{report}");
    server.get(&of("nonesuch", "/trace")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
    server.get(&of(&id[..6], "/trace")).assert_error(404, "DOCKER::SANDBOX_NOT_FOUND");
}

#[test]
fn a_replay_names_the_first_step_that_went_another_way() {
    let server = Server::new();
    let id = server.create(json!({}));
    let trajectory = |output: &str| {
        let step =
            json!({ "tool_name": "shell", "params": { "command": "echo 1" }, "expected_output": output });
        json!({ "trajectory": { "steps": [step], "metadata": {} } })
    };
    let replay = |body: &Value| server.send("POST", &of(&id, "/replay"), body);
    let same = replay(&trajectory("1\n")).json();
    assert_eq!((&same["same"], &same["done"]), (&json!(true), &json!(1)), "{same}");
    let other = replay(&trajectory("2\n")).json();
    assert_eq!((&other["same"], &other["firstDivergence"]), (&json!(false), &json!(1)), "{other}");

    let recorded = server.create(json!({}));
    server.send("POST", &of(&recorded, "/tools/shell"), &json!({ "command": "echo tool" }));
    let again = replay(&json!({ "of": recorded })).json();
    assert_eq!((&again["same"], &again["steps"]), (&json!(true), &json!(1)), "{again}");
    // What a reset undid is no step of it, so a step is named by its line, too.
    for command in ["echo first", "echo second"] {
        server.send("POST", &of(&recorded, "/exec"), &json!({ "command": command }));
    }
    assert_eq!(server.send("POST", &of(&recorded, "/reset"), &json!({})).status, 200);
    server.send("POST", &of(&recorded, "/exec"), &json!({ "command": "cat /proc/sys/kernel/random/uuid" }));
    let third = replay(&json!({ "of": recorded, "strictness": "strict" })).json();
    assert_eq!((&third["steps"], &third["firstDivergence"]), (&json!(1), &json!(1)), "{third}");
    let seq = third["divergences"][0]["seq"].as_u64().unwrap() as usize;
    let record = server.get(&of(&recorded, "/trace")).text();
    let line = record.lines().nth(seq - 1).unwrap();
    assert!(line.contains("exec_started") && line.contains("random/uuid"), "{line}");
    replay(&json!({})).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    replay(&json!({ "trajectory": 7 })).assert_error(400, "SANDBOX::INVALID_PARAMETER");
}

fn boxes(server: &Server) -> usize {
    server.get("/v1/sandboxes").json()["pagination"]["totalItems"].as_u64().unwrap() as usize
}

#[test]
fn a_piece_of_code_runs_in_a_box_that_goes_with_it() {
    let server = Server::new();
    let run = |body: Value| server.send("POST", "/v1/execute", &body);
    let events = run(
        json!({ "language": "python", "code": "import os\nprint(6 * 7)\nprint(os.environ['X'])", "envs": { "X": "y" } }),
    );
    let events = events.events();
    assert_eq!(texts(&events, "stdout"), ["42", "y"], "{events:?}");
    assert_eq!(events.last().unwrap()["type"], "execution_complete");
    let events = run(json!({ "language": "bash", "code": "echo ${BASH_VERSION:+bash}; exit 3" })).events();
    assert_eq!(
        (texts(&events, "stdout"), &events.last().unwrap()["error"]["evalue"]),
        (vec!["bash".to_owned()], &json!("3"))
    );
    for (language, endless) in [("sh", "while :; do :; done"), ("python", "while True: pass")] {
        let late = run(json!({ "language": language, "code": endless, "timeout": 50 })).events();
        assert_eq!(late.last().unwrap()["error"]["evalue"], "-1", "{late:?}");
    }
    run(json!({ "language": "cobol", "code": "" })).assert_error(400, "SANDBOX::INVALID_PARAMETER");
    run(json!({ "language": "sh", "code": "", "timeout": 0 }))
        .assert_error(400, "SANDBOX::INVALID_PARAMETER");
    while boxes(&server) > 0 {}
}

#[test]
fn a_piece_of_code_tells_what_code_tells_in_a_context() {
    let server = Server::new();
    let run = |language: &str, code: &str| {
        let answer = server.send("POST", "/v1/execute", &json!({ "language": language, "code": code }));
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.events()
    };
    let events = run("python", "print('out')\n6 * 7");
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["type"].as_str()).collect();
    assert_eq!(kinds, ["init", "stdout", "result", "execution_complete"], "{events:?}");
    assert_eq!(events[2]["results"]["text"], "42");
    let failed = run("python", "def f():\n    return 1 / 0\nf()");
    let error = &failed.last().unwrap()["error"];
    assert_eq!(
        (&error["ename"], &error["evalue"]),
        (&json!("ZeroDivisionError"), &json!("division by zero"))
    );
    // It ends as a program does: with its own code, and when its threads have ended.
    for (code, told) in [("import sys\nsys.exit(3)", "3"), ("raise SystemExit('why')", "1")] {
        assert_eq!(run("python", code).last().unwrap()["error"]["evalue"], told, "{code}");
    }
    assert_eq!(run("python", "import sys\nsys.exit()").last().unwrap()["type"], "execution_complete");
    let events = run(
        "python",
        "import atexit, threading, time\natexit.register(print, 'last')\n\
         def f():\n    time.sleep(0.2)\n    print('late')\nthreading.Thread(target=f).start()",
    );
    assert_eq!(texts(&events, "stdout"), ["late", "last"], "{events:?}");
    let long = format!("#{}\nprint('long')", "x".repeat(200_000));
    assert_eq!(texts(&run("python", &long), "stdout"), ["long"]);
    let events = run("javascript", "setTimeout(() => console.log('later'), 50); console.log('now')");
    assert_eq!(texts(&events, "stdout"), ["now", "later"], "a program waits for what it has begun");
    while boxes(&server) > 0 {}
}

#[test]
fn code_ends_with_the_caller_who_stops_to_listen() {
    let server = Server::new();
    let body = json!({ "language": "sh", "code": "echo begun; exec sleep 1000000" }).to_string();
    let json = [("content-type", "application/json")];
    let mut stream = server.open("POST", "/v1/execute", &json, body.as_bytes());
    await_begun(&mut stream);
    assert_eq!(boxes(&server), 1);
    drop(stream);
    while boxes(&server) > 0 {}
}

#[test]
fn what_is_missing_is_named_and_is_not_the_sandbox() {
    let server = Server::new();
    let id = server.create(json!({}));
    let check = |answer: Answer, code: &str, sentence: &str| {
        answer.assert_error(404, code);
        assert_eq!(answer.json()["message"], sentence);
    };
    let none = "there is no context none";
    check(server.get(&of(&id, "/contexts/none")), "CONTEXT_NOT_FOUND", none);
    check(server.send("DELETE", &of(&id, "/contexts/none"), &json!({})), "CONTEXT_NOT_FOUND", none);
    for what in ["run", "interrupt", "restart"] {
        let path = of(&id, &format!("/contexts/none/{what}"));
        check(server.send("POST", &path, &json!({ "code": "1" })), "CONTEXT_NOT_FOUND", none);
    }
    for (method, path) in
        [("GET", "/code/contexts/none"), ("DELETE", "/code/contexts/none"), ("DELETE", "/code?id=none")]
    {
        check(server.send(method, &execd(&id, path), &json!({})), "CONTEXT_NOT_FOUND", none);
    }
    for path in ["/command/status/none", "/command/none/logs"] {
        check(server.get(&execd(&id, path)), "CONTEXT_NOT_FOUND", "there is no command none");
    }
    check(server.get("/v1/snapshots/none"), "SNAPSHOT::NOT_FOUND", "there is no snapshot none");
    check(server.get("/v1/sandboxes/none"), "DOCKER::SANDBOX_NOT_FOUND", "there is no sandbox none");
    let stranger = json!({ "language": "python", "user": "stranger" });
    let answer = server.send("POST", &of(&id, "/contexts"), &stranger);
    answer.assert_error(404, "NOT_FOUND");
    assert!(answer.json()["message"].as_str().unwrap().contains("stranger"), "{answer:?}");
    // What the box had on record can be removed while it lives.
    std::fs::remove_dir_all(server.house.home().join("traces").join(&id)).unwrap();
    check(server.get(&of(&id, "/trace")), "TRACE_NOT_FOUND", &format!("there is no record of sandbox {id}"));
}
