//! `box.json`: what is on record of a box.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result};
use crate::spec::{Level, LimitInForce, Limits, RuntimeKind, SandboxInfo, SandboxSpec, SandboxState, Volume};
use crate::task::TaskInfo;
use crate::tools::ToolsSpec;

/// The layout's version, in every `box.json`.
const VERSION: u64 = 1;

/// Most records fit, so that none has to grow while it is written.
const RECORD_BYTES: usize = 4096;

/// All that is on record of a box.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BoxRecord {
    pub(crate) info: SandboxInfo,
    /// What was asked for, so that it can be made again.
    pub(crate) spec: SandboxSpec,
    /// What its image gives to commands.
    pub(crate) given: Given,
    /// The layers that are mounted. Those of its chain may have been merged since; they show the same.
    pub(crate) mounted: Vec<String>,
    /// What the box is about to stand on. Written before the kernel is asked; whoever finds it asks the box which it is.
    pub(crate) pending: Option<Pending>,
}

/// What an image gives to commands: a snapshot takes it along.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) env: Vec<(String, String)>,
    pub(crate) user: String,
    pub(crate) cwd: String,
}

/// A change of what a box stands on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) generation: u64,
    pub(crate) chain: Vec<String>,
    /// The old top becomes this layer.
    pub(crate) seals: Option<String>,
}

/// Puts the members of an object into words, one after the other: a tree of values would be made only to be written.
macro_rules! put {
    ($text:ident, $($name:literal: $value:expr),* $(,)?) => {
        $(
            $text.extend_from_slice(concat!("\"", $name, "\":").as_bytes());
            serde_json::to_writer(&mut $text, &$value)?;
            $text.push(b',');
        )*
    };
}

impl BoxRecord {
    /// As it is written.
    pub(crate) fn to_text(&self) -> Result<String> {
        let unspoken = |e: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Failed, format!("cannot put box {} on record: {e}", self.info.id))
        };
        let mut text = Vec::with_capacity(RECORD_BYTES);
        text.push(b'{');
        self.put_all(&mut text).map_err(|e| unspoken(&e))?;
        end(&mut text);
        String::from_utf8(text).map_err(|e| unspoken(&e))
    }

    fn put_all(&self, text: &mut Vec<u8>) -> serde_json::Result<()> {
        put_info(text, &self.info)?;
        nest(text, "\"spec\":", |text| put_spec(text, &self.spec))?;
        nest(text, "\"given\":", |mut text| {
            let Given { env, user, cwd } = &self.given;
            put!(text, "env": env, "user": user, "cwd": cwd);
            Ok(())
        })?;
        if let Some(Pending { generation, chain, seals }) = &self.pending {
            nest(text, "\"pending\":", |mut text| {
                put!(text, "generation": generation, "chain": chain, "seals": seals);
                Ok(())
            })?;
        }
        let mut text = text;
        put!(text, "mounted": self.mounted);
        Ok(())
    }

    pub(crate) fn from_json(value: &Value) -> Option<BoxRecord> {
        let info = info_from_json(value)?;
        let spec = spec_from_json(value.get("spec")?)?;
        let pending = value.get("pending").and_then(|pending| {
            Some(Pending {
                generation: pending.get("generation")?.as_u64()?,
                chain: strings(pending.get("chain")?)?,
                seals: pending.get("seals").and_then(Value::as_str).map(str::to_owned),
            })
        });
        let given = value.get("given")?;
        let given = Given {
            env: variables(given.get("env")?)?,
            user: given.get("user")?.as_str()?.to_owned(),
            cwd: given.get("cwd")?.as_str()?.to_owned(),
        };
        let mounted = strings(value.get("mounted")?)?;
        Some(BoxRecord { info, spec, given, mounted, pending })
    }
}

fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| Some(item.as_str()?.to_owned())).collect()
}

/// Pairs of a name and a value.
pub(crate) fn variables(value: &Value) -> Option<Vec<(String, String)>> {
    let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
    value.as_array()?.iter().map(pair).collect()
}

fn map(value: &Value) -> Option<BTreeMap<String, String>> {
    value.as_object()?.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

/// Puts an object into words, as a member or an item of what is put.
fn nest(
    text: &mut Vec<u8>,
    name: &str,
    members: impl FnOnce(&mut Vec<u8>) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    text.extend_from_slice(name.as_bytes());
    text.push(b'{');
    members(text)?;
    end(text);
    text.push(b',');
    Ok(())
}

/// Ends an object, whose last member has a comma behind it.
fn end(text: &mut Vec<u8>) {
    text.pop();
    text.push(b'}');
}

fn put_spec(mut text: &mut Vec<u8>, spec: &SandboxSpec) -> serde_json::Result<()> {
    let ms = |time: Option<Duration>| time.map(|time| time.as_millis() as u64);
    let limits = &spec.limits;
    put!(text,
        "image": spec.image.to_string(), "runtime": spec.runtime.name(),
        "min_level": spec.min_level.map(Level::name),
        "env": spec.env, "cwd": spec.cwd, "user": spec.user, "name": spec.name, "labels": spec.labels,
        "read_only": spec.read_only, "deterministic": spec.is_deterministic(), "recording": spec.recording().name(),
        "owner": spec.owner, "task": spec.task.as_ref().map(TaskInfo::to_json), "tools": spec.tools.to_json(),
        "redact": spec.redact, "engine_runtime": spec.engine_runtime,
        "volumes": spec.volumes.iter().map(volume_to_json).collect::<Vec<_>>(),
    );
    nest(text, "\"limits\":", |mut text| {
        put!(text,
            "memory_bytes": limits.memory_bytes, "cpus": limits.cpus, "pids": limits.pids,
            "disk_bytes": limits.disk_bytes, "output_bytes": limits.output_bytes,
            "timeout_ms": ms(limits.timeout), "ttl_ms": ms(limits.ttl),
        );
        Ok(())
    })
}

fn spec_from_json(value: &Value) -> Option<SandboxSpec> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let limits = value.get("limits")?;
    let number = |key: &str| limits.get(key).and_then(Value::as_u64);
    let time = |key: &str| number(key).map(Duration::from_millis);
    Some(SandboxSpec {
        image: text("image")?.parse().ok()?,
        runtime: text("runtime")?.parse().ok()?,
        min_level: match text("min_level") {
            Some(level) => Some(level.parse().ok()?),
            None => None,
        },
        limits: Limits {
            memory_bytes: number("memory_bytes"),
            cpus: limits.get("cpus").and_then(Value::as_f64),
            pids: number("pids"),
            disk_bytes: number("disk_bytes"),
            output_bytes: number("output_bytes"),
            timeout: time("timeout_ms"),
            ttl: time("ttl_ms"),
        },
        env: variables(value.get("env")?)?,
        cwd: text("cwd"),
        user: text("user"),
        name: text("name"),
        labels: map(value.get("labels")?)?,
        read_only: value.get("read_only")?.as_bool()?,
        recording: Some(text("recording").and_then(|text| text.parse().ok()).unwrap_or_default()),
        deterministic: Some(value.get("deterministic").and_then(Value::as_bool).unwrap_or(false)),
        owner: value.get("owner").and_then(Value::as_u64).map(|pid| pid as u32),
        task: value.get("task").and_then(TaskInfo::from_json),
        tools: ToolsSpec::from_json(value.get("tools"))?,
        redact: redact_of(value)?,
        volumes: volumes_of(value)?,
        engine_runtime: text("engine_runtime"),
        ..SandboxSpec::default()
    })
}

fn put_info(mut text: &mut Vec<u8>, info: &SandboxInfo) -> serde_json::Result<()> {
    put!(text,
        "version": VERSION, "id": info.id, "name": info.name, "runtime": info.runtime.name(),
        "level": info.level.name(), "missing": info.missing, "image": info.image.to_string(),
        "root_image": info.root_image.to_string(), "created_ms": info.created_ms, "pid": info.pid,
        "start_ticks": info.start_ticks, "labels": info.labels, "owner": info.owner, "ttl_ms": info.ttl_ms, "user": info.user, "cwd": info.cwd,
        "read_only": info.read_only, "deterministic": info.deterministic, "uncontrolled": info.uncontrolled,
        "tracking": info.tracking, "uid_base": info.uid_base, "stopped": info.state == SandboxState::Stopped,
        "chain": info.chain, "origin": info.origin, "generation": info.generation,
        "recording": info.recording.name(), "task": info.task.as_ref().map(TaskInfo::to_json),
    );
    text.extend_from_slice(b"\"limits\":[");
    for LimitInForce { name, value, amount, mechanism } in &info.limits {
        nest(text, "", |mut text| {
            put!(text, "name": name, "value": value, "amount": amount, "mechanism": mechanism);
            Ok(())
        })?;
    }
    // The comma behind the last one, if there is one.
    text.pop_if(|last| *last == b',');
    text.extend_from_slice(b"],");
    Ok(())
}

fn info_from_json(value: &Value) -> Option<SandboxInfo> {
    let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
    let number = |key: &str| value.get(key)?.as_u64();
    let limit = |value: &Value| {
        let text = |key: &str| value.get(key)?.as_str().map(str::to_owned);
        let amount = value.get("amount").and_then(Value::as_u64);
        Some(LimitInForce {
            name: text("name")?,
            value: text("value")?,
            amount,
            mechanism: text("mechanism")?,
        })
    };
    let labels: BTreeMap<String, String> = value
        .get("labels")?
        .as_object()?
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect();
    Some(SandboxInfo {
        id: text("id")?,
        name: text("name"),
        state: match value.get("stopped").and_then(Value::as_bool) {
            Some(true) => SandboxState::Stopped,
            _ => SandboxState::Dead,
        },
        runtime: text("runtime")?.parse::<RuntimeKind>().ok()?,
        level: text("level")?.parse::<Level>().ok()?,
        missing: value
            .get("missing")?
            .as_array()?
            .iter()
            .filter_map(|m| Some(m.as_str()?.to_owned()))
            .collect(),
        image: text("image")?.parse().ok()?,
        root_image: text("root_image")?.parse().ok()?,
        created_ms: number("created_ms")?,
        pid: number("pid")? as i32,
        start_ticks: number("start_ticks")?,
        limits: value.get("limits")?.as_array()?.iter().filter_map(limit).collect(),
        labels,
        owner: number("owner").map(|pid| pid as u32),
        ttl_ms: number("ttl_ms"),
        user: text("user")?,
        cwd: text("cwd")?,
        read_only: value.get("read_only")?.as_bool()?,
        deterministic: value.get("deterministic").and_then(Value::as_bool).unwrap_or(false),
        uncontrolled: value.get("uncontrolled").and_then(strings).unwrap_or_default(),
        tracking: text("tracking")?,
        uid_base: number("uid_base").map(|base| base as u32),
        chain: strings(value.get("chain")?)?,
        origin: strings(value.get("origin")?)?,
        generation: number("generation")?,
        recording: text("recording").and_then(|text| text.parse().ok()).unwrap_or_default(),
        task: value.get("task").and_then(TaskInfo::from_json),
        tools: ToolsSpec::from_json(value.get("spec").and_then(|spec| spec.get("tools")))?,
        redact: value.get("spec").map_or(Some(Vec::new()), redact_of)?,
        volumes: value.get("spec").map_or(Some(Vec::new()), volumes_of)?,
    })
}

fn volume_to_json(volume: &Volume) -> Value {
    let (host, path, seen) = (volume.host.to_string_lossy(), &volume.path, volume.seen);
    json!({ "host": host, "path": path, "read_only": volume.read_only, "seen": seen })
}

/// Boxes of an older program have none.
fn volumes_of(spec: &Value) -> Option<Vec<Volume>> {
    let volume = |value: &Value| {
        let text = |key: &str| value.get(key)?.as_str();
        let number = |at: usize| value.get("seen")?.get(at)?.as_u64();
        let seen = number(0).zip(number(1));
        let read_only = value.get("read_only")?.as_bool()?;
        Some(Volume { seen, ..Volume::new(text("host")?, text("path")?, read_only) })
    };
    spec.get("volumes").map_or(Some(Vec::new()), |volumes| volumes.as_array()?.iter().map(volume).collect())
}

/// Boxes of an older program have none.
fn redact_of(spec: &Value) -> Option<Vec<String>> {
    spec.get("redact").map_or(Some(Vec::new()), strings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> TaskInfo {
        TaskInfo {
            repo: "https://host/r".into(),
            asked: "main".into(),
            commit: "ab".repeat(20),
            setup: vec!["make \"x\"".into()],
            test: None,
            dir: "/workspace".into(),
        }
    }

    #[test]
    fn what_is_known_of_a_box_survives_the_disk() {
        let image = crate::spec::Image::Directory("/srv/root".into());
        let task = task();
        let own = crate::tools::CommandTool::parse(r#"{"name": "x", "argv": ["cat"]}"#).unwrap();
        let tools = ToolsSpec { off: vec!["git".into()], own };
        let volume = Volume { seen: Some((5, u64::MAX)), ..Volume::new("/srv/x", "/data", true) };
        let info = SandboxInfo {
            id: "abcdefgh".into(),
            name: Some("work".into()),
            state: SandboxState::Stopped,
            runtime: RuntimeKind::Native,
            level: Level::Reduced,
            missing: vec!["landlock: not in this kernel".into()],
            image: image.clone(),
            root_image: image.clone(),
            created_ms: 5,
            pid: 77,
            start_ticks: 99,
            limits: vec![LimitInForce {
                name: "pids".into(),
                value: "5".into(),
                amount: Some(5),
                mechanism: "cgroup v1".into(),
            }],
            labels: [("k".to_owned(), "v\n\"".to_owned())].into(),
            owner: Some(3),
            ttl_ms: None,
            user: "root".into(),
            cwd: "/".into(),
            read_only: true,
            deterministic: true,
            uncontrolled: vec!["the weather: nobody can".into()],
            tracking: "cgroup v2".into(),
            uid_base: Some(1_000_000_000),
            chain: vec!["top-a".into(), "dir:/srv/root".into()],
            origin: vec!["dir:/srv/root".into()],
            generation: 3,
            recording: crate::spec::Recording::Snapshots,
            task: Some(task.clone()),
            tools: tools.clone(),
            redact: vec!["corp-\\d+".into()],
            volumes: vec![volume.clone()],
        };
        let spec = SandboxSpec {
            image,
            min_level: Some(Level::Reduced),
            limits: Limits { cpus: Some(0.5), ttl: Some(Duration::from_secs(3)), ..Limits::default() },
            env: vec![("A".into(), "b\nc".into())],
            deterministic: Some(true),
            engine_runtime: Some("runsc".into()),
            owner: Some(3),
            recording: Some(crate::spec::Recording::Steps),
            task: Some(task),
            tools,
            redact: vec!["corp-\\d+".into()],
            volumes: vec![volume],
            ..SandboxSpec::default()
        };
        let pending = Pending { generation: 4, chain: vec!["x".into()], seals: Some("y".into()) };
        for pending in [None, Some(pending)] {
            let given = Given { env: spec.env.clone(), user: "u".into(), cwd: "/".into() };
            let mounted = vec!["top-b".to_owned()];
            let record = BoxRecord { info: info.clone(), spec: spec.clone(), given, mounted, pending };
            let value = serde_json::from_str(&record.to_text().unwrap()).unwrap();
            assert_eq!(BoxRecord::from_json(&value), Some(record));
        }
    }
}
