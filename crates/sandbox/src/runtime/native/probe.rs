//! What this host can do, found by trying it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use glasshouse_linux::cgroup::Controller;
use glasshouse_linux::{landlock, rustix};
use glasshouse_protocol::frame::{self, Decoder, Kind};
use glasshouse_protocol::plan::StepFailure;
use glasshouse_protocol::{ExecSpec, Program, Reply, Request};
use rustix::io::Errno;

use crate::client;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::home::Home;
use crate::image;
use crate::limits::REPLY_TIMEOUT;
use crate::runtime::native::{LANDLOCK_ABI_MIN, Native, limit};
use crate::runtime::start::read_small;
use crate::runtime::{Feature, Runtime, RuntimeReport};
use crate::spec::{Image, Level, RuntimeKind, SandboxSpec};

/// Builds a box for real, and looks at what it came to.
pub(super) fn probe(native: &Native) -> RuntimeReport {
    let mut features = vec![who(native), kernel()];
    let spec = SandboxSpec { min_level: Some(Level::None), ..SandboxSpec::default() };
    let id = format!("probe-{}", std::process::id());
    let built = image::resolve(&native.home, &Image::Host).and_then(|base| native.create(&id, &spec, &base));
    let (level, missing) = match built {
        Ok(created) => {
            let info = created.info;
            let detail =
                "namespaces, overlay root, masked /proc, no capabilities, filter: built and removed again";
            features.push(feature("box", true, detail, None));
            features.push(match runs(created.stream) {
                Ok(()) => feature("command", true, "a program was started in it, and ended", None),
                Err(e) => feature("command", false, format!("nothing can be started in it: {e}"), None),
            });
            if let Err(e) = native.destroy(Some(&info), &id) {
                features.push(feature(
                    "destroy",
                    false,
                    e.to_string(),
                    Some("`glass gc` tries again".into()),
                ));
            }
            (info.level, info.missing)
        }
        Err(e) => {
            features.push(feature("box", false, e.to_string(), None));
            (Level::None, Vec::new())
        }
    };
    // A box in which nothing runs is none.
    let level = if features.iter().any(|f| f.name == "command" && !f.ok) { Level::None } else { level };
    features.push(users(native, &missing));
    features.push(landlock());
    features.push(tracking(native));
    for controller in [Controller::Memory, Controller::Pids, Controller::Cpu] {
        features.push(controlled(native, controller));
    }
    let limits = limit::decide(&native.trees, &spec).map(|decided| decided.in_force).unwrap_or_default();
    RuntimeReport { runtime: RuntimeKind::Native, level, features, limits }
}

/// Runs a program in a box that has just been built.
fn runs(mut stream: UnixStream) -> Result<()> {
    let program = Program::Argv(vec!["/bin/true".into()]);
    let request = Request::Exec(Box::new(ExecSpec { program, ..ExecSpec::default() }));
    let mut bytes = Vec::new();
    let body = serde_json::to_vec(&request)
        .map_err(|e| Error::new(ErrorKind::Failed, format!("cannot put the request into words: {e}")))?;
    frame::put(&mut bytes, 1, Kind::Request, &body);
    stream.write_all(&bytes).context("talk to the guest")?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT)).context("listen to the guest")?;
    let (mut decoder, mut buffer) = (Decoder::default(), [0; 4096]);
    loop {
        let broken = |e: &dyn std::fmt::Display| Error::new(ErrorKind::Failed, e.to_string());
        while let Some(frame) = decoder.next_frame().map_err(|e| broken(&e))? {
            if frame.kind == Kind::Reply
                && let Reply::Ended { report, .. } = client::understand(&frame)?
            {
                return if report.exit.success() { Ok(()) } else { Err(broken(&report.exit)) };
            }
        }
        match stream.read(&mut buffer).context("listen to the guest")? {
            0 => return Err(broken(&"the guest has ended")),
            n => decoder.feed(&buffer[..n]),
        }
    }
}

fn feature(name: &str, ok: bool, detail: impl Into<String>, hint: Option<String>) -> Feature {
    Feature { name: name.into(), ok, detail: detail.into(), hint }
}

fn who(native: &Native) -> Feature {
    let uid = rustix::process::geteuid().as_raw();
    let detail = if native.is_root() { "root".to_owned() } else { format!("rootless, uid {uid}") };
    feature("mode", true, detail, None)
}

fn kernel() -> Feature {
    let name = rustix::system::uname();
    feature("kernel", true, name.release().to_string_lossy().into_owned(), None)
}

fn users(native: &Native, missing: &[String]) -> Feature {
    if !native.is_root() {
        return feature("users", true, "one user per box, mapped to yours", None);
    }
    match missing.iter().find(|line| line.starts_with("own uid range")) {
        None => feature("users", true, "65536 uids of its own per box (idmapped layers)", None),
        Some(line) => {
            let hint =
                "put the state directory (--home) on ext4, xfs, btrfs or tmpfs, with kernel 5.19 or newer";
            feature("users", false, line.clone(), Some(hint.into()))
        }
    }
}

fn landlock() -> Feature {
    let abi = landlock::abi();
    let hint = "boot with `lsm=…,landlock` in the kernel's command line, kernel 5.19 or newer";
    match abi >= LANDLOCK_ABI_MIN {
        true => feature("landlock", true, format!("ABI {abi}"), None),
        false => feature("landlock", false, format!("ABI {abi}"), Some(hint.into())),
    }
}

fn tracking(native: &Native) -> Feature {
    match native.trees.tracking() {
        Ok(()) => feature("exact kill", true, "a cgroup v2 directory per command", None),
        Err(why) => feature("exact kill", true, format!("a namespace mark per command ({why})"), None),
    }
}

fn controlled(native: &Native, controller: Controller) -> Feature {
    let name = format!("cgroup {}", controller.name());
    match native.trees.controller(controller) {
        Ok(version) => feature(&name, true, format!("{version:?}").to_lowercase(), None),
        Err(why) => {
            let hint = match native.is_root() {
                true => "mount the controller, or enable it in cgroup.subtree_control",
                false => {
                    "run as root for limits on the whole box, or in a cgroup of your own: \
                     `systemd-run --user --scope -p Delegate=yes bash`"
                }
            };
            feature(&name, false, why, Some(hint.into()))
        }
    }
}

/// What a user can do about a step that failed.
pub(super) fn hint(failure: &StepFailure, home: &Home) -> Option<String> {
    let errno = Errno::from_raw_os_error(failure.errno);
    let sysctl = |path: &str| read_small(path).map(|text| text.trim().to_owned());
    match (failure.step.as_str(), errno) {
        ("namespaces", Errno::PERM)
            if sysctl("/proc/sys/kernel/unprivileged_userns_clone").as_deref() == Some("0") =>
        {
            Some("allow user namespaces: `sysctl kernel.unprivileged_userns_clone=1`, or run as root".into())
        }
        ("namespaces" | "id maps", Errno::PERM | Errno::ACCESS)
            if sysctl("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") =>
        {
            Some(
                "AppArmor forbids user namespaces to programs without a profile: \
                 `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or run as root"
                    .into(),
            )
        }
        ("namespaces", Errno::PERM) => Some(
            "this looks like a container that forbids namespaces: run it with fewer restrictions, or as root"
                .into(),
        ),
        ("namespaces", Errno::NOSPC | Errno::USERS) => {
            Some("the limit of namespaces is reached: see /proc/sys/user/max_user_namespaces".into())
        }
        ("overlay root", Errno::INVAL) => Some(format!(
            "overlay cannot use {} as its upper layer: choose a --home on ext4, xfs, btrfs or tmpfs",
            home.path("boxes").display()
        )),
        ("overlay root", Errno::NODEV) => {
            Some("this kernel has no overlay file system: `modprobe overlay`".into())
        }
        ("mount /proc", Errno::PERM) => Some(
            "parts of /proc are covered here (a container?): run on the host, or with an unmasked /proc"
                .into(),
        ),
        ("mount /proc" | "mount /dev" | "mount /sys", Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
            Some("the image has a link or a file where a directory must be".into())
        }
        (_, Errno::NOSPC) => Some("the disk is full".into()),
        _ => None,
    }
}
