//! Files: the forms that the SDKs send, and the odd corners of the protocol.

use glasshouse_tests::is_root;
use serde_json::{Value, json};

use crate::stage::{Answer, Server, execd};

/// A form of these parts: name, content.
fn form(parts: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, content) in parts {
        // The SDKs give what they say of a file a file's name as well.
        let head = format!(
            "--of-mine\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{name}\"\r\n\
             Content-Type: application/octet-stream\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--of-mine--\r\n");
    body
}

const FORM: (&str, &str) = ("content-type", "multipart/form-data; boundary=of-mine");

fn upload(server: &Server, id: &str, parts: &[(&str, &[u8])]) -> Answer {
    server.request("POST", &execd(id, "/files/upload"), &[FORM], &form(parts))
}

fn write(server: &Server, id: &str, path: &str, content: &[u8]) {
    let about = json!({ "path": path, "mode": 644, "owner": null, "group": null }).to_string();
    let answer = upload(server, id, &[("metadata", about.as_bytes()), ("file", content)]);
    assert_eq!((answer.status, answer.header("content-length")), (200, Some("0")), "{answer:?}");
}

fn info(server: &Server, id: &str, path: &str) -> Value {
    server.get(&execd(id, &format!("/files/info?path={path}"))).json()[path].clone()
}

#[test]
fn files_come_in_pairs_and_in_order() {
    let server = Server::new();
    let id = server.create(json!({}));
    let about = |path: &str, mode: u32| json!({ "path": path, "mode": mode }).to_string();
    let (one, two) = (about("/deep/er/one", 600), about("/tmp/two", 755));
    let parts: [(&str, &[u8]); 4] = [
        ("metadata", one.as_bytes()),
        ("file", b"first"),
        ("metadata", two.as_bytes()),
        ("file", b"\0\xff\r\n--of"),
    ];
    assert_eq!(upload(&server, &id, &parts).status, 200);
    assert_eq!(
        server.lines(&id, "cat /deep/er/one; stat -c ' %a' /deep/er/one /tmp/two"),
        ["first 600", " 755"]
    );
    let binary = server.get(&execd(&id, "/files/download?path=/tmp/two"));
    assert_eq!(binary.body, b"\0\xff\r\n--of");

    let file: (&str, &[u8]) = ("file", b"x");
    let meta: (&str, &[u8]) = ("metadata", one.as_bytes());
    for (parts, code) in [
        (vec![file], "INVALID_FILE_METADATA"),
        (vec![meta], "INVALID_FILE_CONTENT"),
        (vec![meta, file, file], "INVALID_FILE"),
        (vec![("metadata", b"{".as_slice()), file], "INVALID_FILE_METADATA"),
        (vec![("metadata", b"{}".as_slice()), file], "INVALID_FILE_METADATA"),
        (vec![("metadata", br#"{"path":"/x","mode":888}"#.as_slice()), file], "INVALID_FILE_METADATA"),
    ] {
        upload(&server, &id, &parts).assert_error(400, code);
    }
    let no_form = server.request("POST", &execd(&id, "/files/upload"), &[], b"x");
    assert_eq!(no_form.status, 400);
}

#[test]
fn a_form_may_come_in_chunks_and_be_larger_than_memory_is_given() {
    let server = Server::new();
    let id = server.create(json!({}));
    let content: Vec<u8> = (0..10_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let about = json!({ "path": "/big/file", "mode": 640 }).to_string();
    let mut chunked = Vec::new();
    for chunk in form(&[("metadata", about.as_bytes()), ("file", &content)]).chunks(300_000) {
        chunked.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        chunked.extend_from_slice(chunk);
        chunked.extend_from_slice(b"\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let headers = [FORM, ("transfer-encoding", "chunked")];
    assert_eq!(server.request("POST", &execd(&id, "/files/upload"), &headers, &chunked).status, 200);
    let back = server.get(&execd(&id, "/files/download?path=/big/file"));
    assert_eq!(back.header("content-length"), Some(content.len().to_string().as_str()));
    assert!(back.body == content, "what comes out is what went in");
    assert_eq!(info(&server, &id, "/big/file")["mode"], 640);
    let left = std::fs::read_dir(server.house.home().join("server/incoming")).unwrap().count();
    assert_eq!(left, 0, "nothing waits on the disk any more");
}

#[test]
fn files_are_read_whole_in_ranges_and_by_lines() {
    let server = Server::new();
    let id = server.create(json!({}));
    write(&server, &id, "/tmp/a b.txt", b"line1\nline2\nline3\nlast\n");
    let read = |query: &str, headers: &[(&str, &str)]| {
        server.request("GET", &execd(&id, &format!("/files/download?path=/tmp/a+b.txt{query}")), headers, b"")
    };
    let whole = read("", &[]);
    assert_eq!((whole.status, whole.body.len()), (200, 23));
    assert!(whole.header("content-disposition").unwrap().starts_with("attachment"));
    for (range, status, content, of) in [
        ("bytes=0-4", 206, "line1", "bytes 0-4/23"),
        ("bytes=18-", 206, "last\n", "bytes 18-22/23"),
        ("bytes=-5", 206, "last\n", "bytes 18-22/23"),
        ("bytes=18-999", 206, "last\n", "bytes 18-22/23"),
    ] {
        let part = read("", &[("range", range)]);
        assert_eq!(
            (part.status, part.text().as_str(), part.header("content-range")),
            (status, content, Some(of))
        );
    }
    assert_eq!(read("", &[("range", "bytes=99-")]).status, 416);
    assert_eq!(read("&offset=2&limit=2", &[]).text(), "line2\nline3");
    assert_eq!(read("&limit=1", &[]).text(), "line1");
    assert_eq!(read("&offset=4", &[]).text(), "last");
    assert_eq!(read("&offset=9", &[]).text(), "");
    assert_eq!(read("&offset=0", &[]).status, 400);
    assert_eq!(read("&offset=1", &[("range", "bytes=0-1")]).status, 400);
    server.get(&execd(&id, "/files/download")).assert_error(400, "MISSING_QUERY");
    server.get(&execd(&id, "/files/download?path=/none")).assert_error(404, "FILE_NOT_FOUND");
    server.get(&execd(&id, "/files/download?path=/tmp")).assert_error(400, "INVALID_FILE");
}

#[test]
fn a_path_leads_nowhere_but_into_the_box() {
    let server = Server::new();
    let id = server.create(json!({}));
    let secret = server.house.path().join("secret");
    std::fs::write(&secret, "of the host").unwrap();
    let secret = secret.to_str().unwrap();
    server.lines(&id, &format!("ln -s {secret} /tmp/link; ln -s / /tmp/root"));
    for path in
        [secret.to_owned(), format!("/../../..{secret}"), "/tmp/link".into(), format!("/tmp/root{secret}")]
    {
        let answer = server.get(&execd(&id, &format!("/files/download?path={path}")));
        answer.assert_error(404, "FILE_NOT_FOUND");
    }
    write(&server, &id, &format!("/../..{secret}"), b"of the box");
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "of the host");
}

#[test]
fn files_are_looked_at_as_they_were_asked_for() {
    let server = Server::new();
    let id = server.create(json!({}));
    write(&server, &id, "/root/x y", b"12345");
    server.lines(&id, "ln -s 'x y' /root/link; chmod 4755 '/root/x y'");
    let found = server.get(&execd(&id, "/files/info?path=/root/x+y&path=~/link&path=/root")).json();
    let file = &found["/root/x y"];
    assert_eq!((&file["type"], &file["size"], &file["mode"]), (&json!("file"), &json!(5), &json!(755)));
    assert_eq!(
        (&file["owner"], &file["group"], &file["path"]),
        (&json!("root"), &json!("root"), &json!("/root/x y"))
    );
    assert_eq!(
        (&found["~/link"]["type"], &found["~/link"]["path"]),
        (&json!("symlink"), &json!("/root/link"))
    );
    assert_eq!(found["/root"]["type"], "directory");
    assert_eq!(server.get(&execd(&id, "/files/info")).json(), json!({}));
    server.get(&execd(&id, "/files/info?path=/root&path=/none")).assert_error(404, "FILE_NOT_FOUND");
}

#[test]
fn files_are_removed_moved_and_opened_to_others() {
    let server = Server::new();
    let id = server.create(json!({}));
    for name in ["a", "b", "c"] {
        write(&server, &id, &format!("/tmp/{name}"), name.as_bytes());
    }
    let delete = |path: &str| server.request("DELETE", &execd(&id, path), &[], b"");
    assert_eq!(delete("/files?path=/tmp/a&path=/tmp/none").status, 200);
    delete("/files?path=/tmp").assert_error(500, "RUNTIME_ERROR");
    let mv = |from: &str, to: &str| {
        server.send("POST", &execd(&id, "/files/mv"), &json!([{ "src": from, "dest": to }]))
    };
    assert_eq!(mv("/tmp/b", "/new/place/b").status, 200);
    mv("/tmp/b", "/tmp/d").assert_error(404, "FILE_NOT_FOUND");
    mv("/tmp/c", "/new/place/b").assert_error(500, "RUNTIME_ERROR");
    assert_eq!(server.lines(&id, "cat /new/place/b; ls /tmp"), ["bc"]);

    let permit = |wanted: Value| server.send("POST", &execd(&id, "/files/permissions"), &wanted);
    assert_eq!(permit(json!({ "/tmp/c": { "mode": 600, "owner": "root", "group": null } })).status, 200);
    assert_eq!(permit(json!({ "/tmp/c": { "mode": 0, "owner": "", "group": "root" } })).status, 200);
    assert_eq!(info(&server, &id, "/tmp/c")["mode"], 600);
    permit(json!({ "/tmp/c": { "mode": 649 } })).assert_error(400, "INVALID_FILE_METADATA");
    permit(json!({ "/tmp/c": { "mode": 0, "owner": "nonesuch" } })).assert_error(500, "RUNTIME_ERROR");
}

#[test]
fn files_and_directories_are_given_to_users_and_groups() {
    let server = Server::new();
    let id = server.create(json!({}));
    let permit = |wanted: Value| server.send("POST", &execd(&id, "/files/permissions"), &wanted);
    write(&server, &id, "/tmp/mine", b"1");
    let given = permit(json!({ "/tmp/mine": { "mode": 750, "owner": "nobody", "group": "nogroup" } }));
    if !is_root() {
        given.assert_error(500, "RUNTIME_ERROR");
        return;
    }
    assert_eq!((given.status, given.header("content-length")), (200, Some("0")), "{given:?}");
    let whose = |path: &str| {
        let found = info(&server, &id, path);
        format!("{} {} {}", found["owner"], found["group"], found["mode"]).replace('"', "")
    };
    assert_eq!(whose("/tmp/mine"), "nobody nogroup 750");
    // What is not said stays as it is, also when the file is written anew or a text in it is replaced.
    write(&server, &id, "/tmp/mine", b"2");
    assert_eq!(whose("/tmp/mine"), "nobody nogroup 644");
    let replaced = server.send(
        "POST",
        &execd(&id, "/files/replace"),
        &json!({ "/tmp/mine": { "old": "2", "new": "3" } }),
    );
    assert_eq!((replaced.status, whose("/tmp/mine")), (200, "nobody nogroup 644".to_owned()));
    let about = json!({ "path": "/tmp/born", "owner": "nobody", "group": "1234", "mode": 600 }).to_string();
    let born = upload(&server, &id, &[("metadata", about.as_bytes()), ("file", b"x")]);
    assert_eq!((born.status, whose("/tmp/born")), (200, "nobody 1234 600".to_owned()));
    let dirs = json!({ "/given/dir": { "owner": "nobody", "mode": 644 } });
    assert_eq!(server.send("POST", &execd(&id, "/directories"), &dirs).status, 200);
    assert_eq!(whose("/given/dir"), "nobody root 644");
    // Root of a box does not need the mode of a directory for what it does through the protocol.
    let moved = server.send(
        "POST",
        &execd(&id, "/files/mv"),
        &json!([{ "src": "/tmp/born", "dest": "/given/dir/b" }]),
    );
    assert_eq!(moved.status, 200, "{moved:?}");
    assert_eq!(server.get(&execd(&id, "/files/download?path=/given/dir/b")).text(), "x");
}

#[test]
fn files_are_touched_as_any_user_and_group() {
    let server = Server::new();
    let id = server.create(json!({}));
    let of = |path: &str| execd(&id, &format!("/v1/filesystem/1234/77{path}"));
    server
        .get(&execd(&id, "/v1/filesystem/x/0/files/info?path=/tmp"))
        .assert_error(400, "INVALID_REQUEST_BODY");
    if !is_root() {
        server.get(&of("/files/info?path=/tmp")).assert_error(404, "FILE_NOT_FOUND");
        return;
    }
    let made = server.send("POST", &of("/directories"), &json!({ "/tmp/theirs": { "mode": 700 } }));
    assert_eq!(made.status, 200, "{made:?}");
    let about = json!({ "path": "/tmp/theirs/a", "mode": 600 }).to_string();
    let parts = form(&[("metadata", about.as_bytes()), ("file", b"x y")]);
    assert_eq!(server.request("POST", &of("/files/upload"), &[FORM], &parts).status, 200);
    assert_eq!(server.lines(&id, "stat -c '%u %g %a' /tmp/theirs"), ["1234 77 700"]);
    let mv = json!([{ "src": "/tmp/theirs/a", "dest": "/tmp/theirs/b" }]);
    assert_eq!(server.send("POST", &of("/files/mv"), &mv).status, 200);
    let replace = json!({ "/tmp/theirs/b": { "old": "y", "new": "z" } });
    assert_eq!(server.send("POST", &of("/files/replace"), &replace).status, 200);
    let found = server.get(&of("/files/search?path=/tmp/theirs&pattern=*")).json();
    assert_eq!((&found[0]["path"], &found[0]["owner"]), (&json!("/tmp/theirs/b"), &json!("1234")));
    assert_eq!(server.get(&of("/files/download?path=/tmp/theirs/b")).text(), "x z");
    // He may do what he may, and no more.
    server.lines(&id, "echo kept > /tmp/roots");
    let about = json!({ "path": "/tmp/roots" }).to_string();
    let parts = form(&[("metadata", about.as_bytes()), ("file", b"taken")]);
    let over = server.request("POST", &of("/files/upload"), &[FORM], &parts);
    assert!(over.status >= 400, "{over:?}");
    assert_eq!(server.lines(&id, "cat /tmp/roots; ls -A /tmp | grep -c '~$' || true"), ["kept", "0"]);
    let others = json!({ "/root/x": {} });
    server.send("POST", &of("/directories"), &others).assert_error(500, "RUNTIME_ERROR");
    server.get(&of("/files/download?path=/root/none")).assert_error(500, "RUNTIME_ERROR");
    let chown = json!({ "/tmp/theirs/b": { "owner": "root" } });
    server.send("POST", &of("/files/permissions"), &chown).assert_error(500, "RUNTIME_ERROR");
    assert_eq!(server.request("DELETE", &of("/directories?path=/tmp/theirs"), &[], b"").status, 200);
}

#[test]
fn directories_are_made_listed_and_removed() {
    let server = Server::new();
    let id = server.create(json!({}));
    let made =
        server.send("POST", &execd(&id, "/directories"), &json!({ "/d/b": { "mode": 700 }, "/d/a/x": {} }));
    assert_eq!(made.status, 200, "{made:?}");
    assert_eq!(
        server.send("POST", &execd(&id, "/directories"), &json!({ "/d/b": { "mode": 755 } })).status,
        200
    );
    assert_eq!(info(&server, &id, "/d/b")["mode"], 700, "one that was there stays what it was");
    write(&server, &id, "/d/a/f", b"");
    server.lines(&id, "ln -s /d /d/a/loop");
    let list = |query: &str| -> Vec<String> {
        let found = server.get(&execd(&id, &format!("/directories/list?path={query}"))).json();
        found.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(list("/d"), ["/d/a", "/d/b"]);
    assert_eq!(list("/d&depth=9"), ["/d/a", "/d/a/f", "/d/a/loop", "/d/a/x", "/d/b"]);
    assert_eq!(list("/d&depth=0"), Vec::<String>::new());
    server.get(&execd(&id, "/directories/list?path=/none")).assert_error(404, "FILE_NOT_FOUND");
    server.get(&execd(&id, "/directories/list?path=/d/a/f")).assert_error(400, "INVALID_FILE");
    server.get(&execd(&id, "/directories/list?path=/d/a/loop")).assert_error(400, "INVALID_FILE");
    assert_eq!(
        server.request("DELETE", &execd(&id, "/directories?path=/d&path=/none"), &[], b"").status,
        200
    );
    server.get(&execd(&id, "/files/info?path=/d")).assert_error(404, "FILE_NOT_FOUND");
}

#[test]
fn files_are_searched_for_by_name_and_texts_replaced() {
    let server = Server::new();
    let id = server.create(json!({}));
    for path in ["/s/a.txt", "/s/deep/b.txt", "/s/c.md"] {
        write(&server, &id, path, b"x y x");
    }
    let search = |query: &str| -> Vec<String> {
        let found = server.get(&execd(&id, &format!("/files/search?path=/s{query}"))).json();
        found.as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(search("&pattern=*.txt"), ["/s/a.txt", "/s/deep/b.txt"]);
    assert_eq!(search(""), ["/s/a.txt", "/s/c.md", "/s/deep/b.txt"]);
    assert_eq!(search("&pattern=deep"), Vec::<String>::new());
    assert_eq!(search("&pattern=**/*.txt"), ["/s/a.txt", "/s/deep/b.txt"]);
    assert_eq!(search("&pattern=%7Ba,b%7D.%7Btxt,md%7D"), ["/s/a.txt", "/s/deep/b.txt"]);
    // A file is searched, too, and a link is listed and not followed.
    assert_eq!(search("/c.md&pattern=*.md"), ["/s/c.md"]);
    assert_eq!(search("/c.md&pattern=*.txt"), Vec::<String>::new());
    server.lines(&id, "ln -s a.txt /s/l.txt; ln -s deep /s/l");
    assert_eq!(search("&pattern=l*"), ["/s/l", "/s/l.txt"]);
    server.lines(&id, "rm /s/l /s/l.txt");
    server.get(&execd(&id, "/files/search?path=/none")).assert_error(404, "FILE_NOT_FOUND");
    for wrong in ["%5B", "%7Ba", "a%5C"] {
        let path = execd(&id, &format!("/files/search?path=/s&pattern={wrong}"));
        server.get(&path).assert_error(400, "INVALID_REQUEST_BODY");
    }

    let replace = |query: &str, wanted: Value| {
        server.send("POST", &execd(&id, &format!("/files/replace{query}")), &wanted)
    };
    server.lines(&id, "chmod 640 /s/a.txt");
    let wanted = json!({ "/s/a.txt": { "old": "x", "new": "$1" }, "/s/c.md": { "old": "none", "new": "" } });
    let counts = replace("?verbose=true", wanted).json();
    assert_eq!(counts, json!({ "/s/a.txt": { "replacedCount": 2 }, "/s/c.md": { "replacedCount": 0 } }));
    assert_eq!(server.lines(&id, "cat /s/a.txt; stat -c ' %a' /s/a.txt"), ["$1 y $1 640"]);
    let quiet = replace("", json!({ "/s/c.md": { "old": "y", "new": "z" } }));
    assert_eq!((quiet.status, quiet.header("content-length")), (200, Some("0")));
    replace("", json!({ "/s/c.md": { "old": "", "new": "z" } })).assert_error(400, "INVALID_REQUEST_BODY");
    // What a file would become is bounded, too: a short request could be gigabytes.
    server.lines(&id, "head -c 5000 /dev/zero | tr '\\0' a > /s/many");
    let grown = replace("", json!({ "/s/many": { "old": "a", "new": "z".repeat(1 << 20) } }));
    grown.assert_error(500, "RUNTIME_ERROR");
    assert_eq!(server.lines(&id, "wc -c < /s/many"), ["5000"]);
    // Bytes need not be text, and the rest of them stays.
    write(&server, &id, "/s/latin", b"caf\xe9 = 1\n\0");
    let counts = replace("?verbose=true", json!({ "/s/latin": { "old": "= 1", "new": "= 22" } })).json();
    assert_eq!(counts, json!({ "/s/latin": { "replacedCount": 1 } }));
    assert_eq!(server.get(&execd(&id, "/files/download?path=/s/latin")).body, b"caf\xe9 = 22\n\0");
}

#[test]
fn paths_are_told_as_they_are_shortest() {
    let server = Server::new();
    let id = server.create(json!({}));
    write(&server, &id, "/s/a b.txt", b"x");
    for path in ["/s/a%20b.txt", "/s/../s/./a%20b.txt", "//s//a%20b.txt"] {
        let found = server.get(&execd(&id, &format!("/files/info?path={path}"))).json();
        let infos: Vec<&Value> = found.as_object().unwrap().values().collect();
        assert_eq!(infos.iter().map(|info| &info["path"]).collect::<Vec<_>>(), ["/s/a b.txt"], "{path}");
    }
    let told = server.get(&execd(&id, "/files/download?path=/s/a%20b.txt"));
    assert!(told.header("content-disposition").unwrap().contains("filename=\"a b.txt\""), "{told:?}");
    for path in ["/", "/s/..", "//"] {
        let answer = server.request("DELETE", &execd(&id, &format!("/directories?path={path}")), &[], b"");
        answer.assert_error(400, "INVALID_FILE");
    }
    assert_eq!(server.lines(&id, "cat '/s/a b.txt'; echo"), ["x"]);
}

#[test]
fn a_large_file_has_the_mode_that_a_small_one_would_have() {
    let server = Server::new();
    let id = server.create(json!({}));
    // Of these one stays in memory, and the other one waits on the disk.
    let (small, large) = (vec![b'x'; 10], vec![b'x'; 9 << 20]);
    server.lines(&id, "for at in 0 1; do touch /tmp/there$at; chmod 751 /tmp/there$at; done; touch /tmp/shut1; chmod 400 /tmp/shut1");
    let put = |path: &str, mode: Value, content: &[u8]| {
        let about = json!({ "path": path, "mode": mode }).to_string();
        let answer = upload(&server, &id, &[("metadata", about.as_bytes()), ("file", content)]);
        assert_eq!(answer.status, 200, "{answer:?}");
        server.lines(&id, &format!("stat -c '%a %s' {path}"))[0].clone()
    };
    for (at, content) in [&small, &large].into_iter().enumerate() {
        let size = content.len();
        assert_eq!(put(&format!("/tmp/new{at}"), Value::Null, content), format!("644 {size}"));
        assert_eq!(put(&format!("/tmp/there{at}"), Value::Null, content), format!("751 {size}"));
        assert_eq!(put(&format!("/tmp/said{at}"), json!(640), content), format!("640 {size}"));
    }
    assert_eq!(put("/tmp/shut1", Value::Null, &large), format!("400 {}", large.len()));
}

#[test]
fn a_file_was_made_when_it_last_became_what_it_is() {
    let server = Server::new();
    let id = server.create(json!({}));
    server.lines(&id, "touch -d 2001-02-03T04:05:06Z /tmp/old");
    let old = info(&server, &id, "/tmp/old");
    assert!(old["modified_at"].as_str().unwrap().starts_with("2001-02-03T04:05:06"), "{old}");
    assert!(old["created_at"].as_str().unwrap() > "2020", "{old}");
}
