//! The container of a box, as data: what the engine is asked for, and nothing that a caller says goes into it unseen.
//!
//! | wall | by |
//! |---|---|
//! | no network | `NetworkMode: none` |
//! | no capabilities for commands | the guest has seven, empties the bounding set and keeps six, commands have none |
//! | no new privileges, our filter | `SecurityOpt`, and the guest's own filter on top |
//! | memory without swap, processes, CPU | `Memory` = `MemorySwap`, `PidsLimit`, `NanoCpus` |
//! | /proc and /sys that tell nothing of the host | `MaskedPaths`, and a /sys of our making |
//! | the host's files | only what is mounted here: the door, our /sys, for the image `host` its programs, all read-only; volumes |
//!
//! Nothing here is privileged, joins a namespace of the host or publishes a port. The one volume that is named is ours: it
//! has the guest's program in it, where the engine sees nothing of our files ([`Way::Far`]). There, /sys is the engine's with
//! all of it covered but the container's own cgroups, from which the guest learns what became of limits. Directories of the host
//! that are volumes were looked at before, and are again before the box is let go; an engine that sees nothing of our files is
//! given none.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigCgroupnsModeEnum, HostConfigLogConfig, Mount,
    MountBindOptions, MountBindOptionsPropagationEnum, MountType, MountVolumeOptions, ResourcesUlimits,
};
use glasshouse_linux::caps::Cap;
use glasshouse_protocol::plan::{DOOR, DOOR_GUEST, LANDING, LANDING_USER, Source};

use crate::error::{Error, ErrorKind, Result};
use crate::limits::{
    DISK_RESERVE_BYTES, ENGINE_MEMORY_BYTES_MIN, MEMORY_BYTES, PIDS, PIDS_MIN, SHM_BYTES, TMP_BYTES,
};
use crate::runtime::native;
use crate::spec::{LimitInForce, Limits, SandboxSpec};

/// The label that says which home a container or an image belongs to.
pub(super) const LABEL_HOME: &str = "glasshouse.home";
/// The label that says which box.
pub(super) const LABEL_BOX: &str = "glasshouse.box";

/// Beside the capabilities that the guest keeps, the one by which it takes all others from itself.
const TO_DROP: &str = "SETPCAP";

/// What the guest keeps: to start commands as users of the box, and to do file operations as them or as root.
pub(super) const KEPT: [(Cap, &str); 6] = [
    (Cap::Kill, "KILL"),
    (Cap::Setuid, "SETUID"),
    (Cap::Setgid, "SETGID"),
    (Cap::Chown, "CHOWN"),
    (Cap::DacOverride, "DAC_OVERRIDE"),
    (Cap::Fowner, "FOWNER"),
];

/// All that a container depends on.
#[derive(Debug)]
pub(super) struct Hull<'a> {
    pub(super) id: &'a str,
    /// The home, by its tag.
    pub(super) home: &'a str,
    pub(super) spec: &'a SandboxSpec,
    /// The engine's image, by its id.
    pub(super) image: &'a str,
    /// The directory that comes with the image.
    pub(super) cwd: &'a str,
    /// How the guest comes in.
    pub(super) way: Way<'a>,
    /// Trees of the host, and where they are shown.
    pub(super) trees: &'a [(Source, String)],
    /// The engine's runtime for containers.
    pub(super) runtime: Option<&'a str>,
    pub(super) limits: &'a Decided,
    /// Our filter: the profile itself, or where Podman finds it.
    pub(super) filter: String,
    /// Limits of the first process that the engine has to be told, or it asks for more than it may give.
    pub(super) ulimits: Vec<(&'static str, i64)>,
}

/// How the guest comes into a container, and the host to it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Way<'a> {
    /// Through directories of the host.
    Door {
        /// The one that is the door.
        door: &'a Path,
        /// The one that becomes /sys.
        sys: &'a Path,
    },
    /// The engine sees nothing of the host: through this volume of the engine's, and a directory in memory.
    Far {
        /// Its name.
        volume: &'a str,
    },
}

impl Way<'_> {
    fn is_far(self) -> bool {
        matches!(self, Way::Far { .. })
    }
}

/// What is covered below /sys where it is the engine's: all but `fs/cgroup`, as far as kernels call it something.
const SYS_MASKED: [&str; 30] = [
    "block",
    "bus",
    "class",
    "dev",
    "devices",
    "firmware",
    "hypervisor",
    "kernel",
    "module",
    "power",
    "fs/bpf",
    "fs/btrfs",
    "fs/cachefiles",
    "fs/ceph",
    "fs/cifs",
    "fs/erofs",
    "fs/ext4",
    "fs/f2fs",
    "fs/fuse",
    "fs/gfs2",
    "fs/jfs",
    "fs/lustre",
    "fs/nfs",
    "fs/nilfs2",
    "fs/ocfs2",
    "fs/pstore",
    "fs/resctrl",
    "fs/selinux",
    "fs/xfs",
    "fs/zfs",
];

/// Bytes of the directory that has nothing in it but a socket.
const LANDING_BYTES: u64 = 64 * 1024;

/// Limits of a box in a container.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decided {
    pub(super) memory_bytes: u64,
    pub(super) pids: u64,
    pub(super) cpus: Option<f64>,
    pub(super) disk_bytes: Option<u64>,
    pub(super) in_force: Vec<LimitInForce>,
}

/// Decides about limits, or refuses what makes no sense. Whether the engine can is asked of the engine.
pub(super) fn decide(limits: &Limits) -> Result<Decided> {
    let invalid = |message: String| Err(Error::new(ErrorKind::Invalid, message));
    let memory_bytes = limits.memory_bytes.unwrap_or(MEMORY_BYTES);
    if memory_bytes < ENGINE_MEMORY_BYTES_MIN {
        let least = native::bytes(ENGINE_MEMORY_BYTES_MIN);
        return invalid(format!("a box in a container needs at least {least} of memory"));
    }
    let pids = limits.pids.unwrap_or(PIDS);
    if pids < PIDS_MIN {
        return invalid(format!("a box needs at least {PIDS_MIN} processes: its guest and a command"));
    }
    if let Some(cpus) = limits.cpus
        && !(0.01..=100_000.0).contains(&cpus)
    {
        return invalid(format!("{cpus} is no number of CPUs; say something like 0.5 or 2"));
    }
    if limits.disk_bytes.is_some_and(|bytes| bytes < 1 << 20) {
        return invalid("a disk of less than 1 MiB is of no use".into());
    }
    let say = |name: &str, amount: Option<u64>, value: String, mechanism: String| LimitInForce {
        name: name.into(),
        value,
        amount,
        mechanism,
    };
    let engine = |what: &str| format!("Docker engine: {what}");
    let milli = limits.cpus.map(|cpus| (cpus * 1000.0) as u64);
    let mut in_force = vec![
        say("memory", Some(memory_bytes), native::bytes(memory_bytes), engine("memory cgroup, no swap")),
        match limits.cpus {
            Some(cpus) => say("cpu", milli, format!("{cpus} CPUs"), engine("cpu cgroup")),
            None => say("cpu", None, "none".into(), "not asked for".into()),
        },
        say("pids", Some(pids), pids.to_string(), engine("pids cgroup")),
        match limits.disk_bytes {
            Some(bytes) => say("disk", Some(bytes), native::bytes(bytes), engine("storage driver")),
            None => {
                let left = native::bytes(DISK_RESERVE_BYTES);
                let mechanism = format!("guest: commands are ended when the disk has less than {left} left");
                say("disk", None, "none".into(), mechanism)
            }
        },
    ];
    in_force.extend(native::guest_limits(limits));
    Ok(Decided { memory_bytes, pids, cpus: limits.cpus, disk_bytes: limits.disk_bytes, in_force })
}

/// What the engine is asked to create.
pub(super) fn body(hull: &Hull<'_>) -> ContainerCreateBody {
    let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let mut labels: HashMap<String, String> =
        hull.spec.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    labels.insert(LABEL_HOME.into(), hull.home.into());
    labels.insert(LABEL_BOX.into(), hull.id.into());
    ContainerCreateBody {
        hostname: Some("box".into()),
        // The guest; commands have the users that they have.
        user: Some("0:0".into()),
        image: Some(hull.image.into()),
        entrypoint: Some(vec![
            format!("{DOOR}/{DOOR_GUEST}"),
            if hull.way.is_far() { "apart" } else { "contained" }.into(),
        ]),
        cmd: Some(Vec::new()),
        // The engine makes it, if the image names one that it does not have.
        working_dir: Some(hull.cwd.into()),
        network_disabled: Some(true),
        // What an image wants to have run every now and then would run beside the guest.
        healthcheck: Some(HealthConfig { test: words(&["NONE"]), ..HealthConfig::default() }),
        stop_timeout: Some(1),
        labels: Some(labels),
        host_config: Some(host_config(hull)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(hull: &Hull<'_>) -> HostConfig {
    let Decided { memory_bytes, pids, cpus, disk_bytes, .. } = hull.limits;
    let caps = KEPT.iter().map(|(_, name)| *name).chain([TO_DROP]).map(str::to_owned).collect();
    let mut masked: Vec<String> = native::MASKED.iter().map(|name| format!("/proc/{name}")).collect();
    if hull.way.is_far() {
        masked.extend(SYS_MASKED.map(|name| format!("/sys/{name}")));
    }
    let mut read_only: Vec<String> = native::READ_ONLY.iter().map(|name| format!("/proc/{name}")).collect();
    if hull.way.is_far() {
        // By cgroups v1 it is a directory in memory that some engines leave open.
        read_only.push("/sys/fs/cgroup".into());
    }
    let ulimit = |name: &str, value: i64| ResourcesUlimits {
        name: Some(name.into()),
        soft: Some(value),
        hard: Some(value),
    };
    let own = [("core", 0), ("msgqueue", 0)];
    let ulimits = own.iter().chain(&hull.ulimits).map(|(name, value)| ulimit(name, *value)).collect();
    let places = if hull.spec.read_only { 2 } else { 1 };
    // Files in memory are nobody's to kill: half of the box's memory for all of them.
    let files_bytes = memory_bytes / 2 / places;
    HostConfig {
        network_mode: Some("none".into()),
        ipc_mode: Some("private".into()),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        privileged: Some(false),
        publish_all_ports: Some(false),
        init: Some(false),
        cap_drop: Some(vec!["ALL".into()]),
        cap_add: Some(caps),
        security_opt: Some(vec!["no-new-privileges".into(), format!("seccomp={}", hull.filter)]),
        masked_paths: Some(masked),
        readonly_paths: Some(read_only),
        memory: Some(*memory_bytes as i64),
        memory_swap: Some(*memory_bytes as i64),
        nano_cpus: cpus.map(|cpus| (cpus * 1e9) as i64),
        pids_limit: Some(*pids as i64),
        ulimits: Some(ulimits),
        shm_size: Some(SHM_BYTES.min(files_bytes) as i64),
        readonly_rootfs: Some(hull.spec.read_only),
        tmpfs: Some(tmpfs(hull, TMP_BYTES.min(files_bytes))),
        mounts: Some(mounts(hull)),
        storage_opt: disk_bytes.map(|bytes| HashMap::from([("size".into(), bytes.to_string())])),
        // Its network is its own: low ports are no privilege there.
        sysctls: Some(HashMap::from([("net.ipv4.ip_unprivileged_port_start".into(), "0".into())])),
        runtime: hull.runtime.map(str::to_owned),
        // The guest keeps what commands write; what it writes itself nobody reads, and it must not grow.
        log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
        ..HostConfig::default()
    }
}

fn tmpfs(hull: &Hull<'_>, tmp_bytes: u64) -> HashMap<String, String> {
    let mut places = BTreeMap::from([match hull.way {
        // The engine would show the box's cgroups here.
        Way::Door { .. } => ("/sys/fs/cgroup", "ro,noexec,nosuid,nodev,size=4096".to_owned()),
        Way::Far { .. } => {
            let owner = format!("mode=0700,uid={LANDING_USER},gid={LANDING_USER}");
            (LANDING, format!("rw,noexec,nosuid,nodev,size={LANDING_BYTES},{owner}"))
        }
    }]);
    if hull.spec.read_only {
        places.insert("/tmp", format!("rw,exec,nosuid,nodev,mode=1777,size={tmp_bytes}"));
    }
    places.into_iter().map(|(place, options)| (place.to_owned(), options)).collect()
}

fn mounts(hull: &Hull<'_>) -> Vec<Mount> {
    let bind = |source: String, target: String| Mount {
        typ: Some(MountType::BIND),
        source: Some(source),
        target: Some(target),
        read_only: Some(true),
        bind_options: Some(MountBindOptions {
            // What is mounted below it on the host would be writable: engines do not make that read-only.
            non_recursive: Some(true),
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    };
    let own = match hull.way {
        Way::Door { door, sys } => [(door, DOOR), (sys, "/sys")]
            .map(|(path, target)| bind(path.to_string_lossy().into_owned(), target.to_owned()))
            .to_vec(),
        Way::Far { volume } => vec![guest_volume(volume, true)],
    };
    let trees = hull.trees.iter().map(|(source, target)| bind(source.path.clone(), format!("/{target}")));
    // Below one of the host may be others, which stay out: engines do not make those read-only.
    let volumes = hull.spec.volumes.iter().map(|volume| Mount {
        read_only: Some(volume.read_only),
        ..bind(volume.host.to_string_lossy().into_owned(), volume.path.clone())
    });
    own.into_iter().chain(trees).chain(volumes).collect()
}

/// The volume with the guest's program, where that is looked for.
fn guest_volume(name: &str, read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(name.into()),
        target: Some(DOOR.into()),
        read_only: Some(read_only),
        // Nothing of the image's goes into it.
        volume_options: Some(MountVolumeOptions { no_copy: Some(true), ..MountVolumeOptions::default() }),
        ..Mount::default()
    }
}

/// A container that never runs: files are put into the volume through it.
pub(super) fn filler(home: &str, image: &str, volume: &str) -> ContainerCreateBody {
    let body = idle(home, image);
    let mounts = Some(vec![guest_volume(volume, false)]);
    let host_config = body.host_config.map(|config| HostConfig { mounts, ..config });
    ContainerCreateBody { host_config, ..body }
}

/// A container that never runs.
pub(super) fn idle(home: &str, image: &str) -> ContainerCreateBody {
    ContainerCreateBody {
        image: Some(image.into()),
        entrypoint: Some(vec![format!("{DOOR}/{DOOR_GUEST}")]),
        cmd: Some(Vec::new()),
        network_disabled: Some(true),
        // It is of no box.
        labels: Some(HashMap::from([(LABEL_HOME.into(), home.into())])),
        host_config: Some(HostConfig { network_mode: Some("none".into()), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile;
    use super::*;

    fn by_door() -> Way<'static> {
        Way::Door { door: Path::new("/boxes/a/door"), sys: Path::new("/boxes/a/sys") }
    }

    fn hull_of(spec: &SandboxSpec, way: Way<'_>) -> ContainerCreateBody {
        let trees = [(Source { path: "/usr".into(), dev: 1, ino: 2 }, "usr".to_owned())];
        body(&Hull {
            id: "abcdefgh",
            home: "1-2",
            spec,
            image: "sha256:00",
            cwd: "/",
            way,
            trees: &trees,
            runtime: None,
            limits: &decide(&spec.limits).unwrap(),
            filter: profile::profile(),
            ulimits: Vec::new(),
        })
    }

    #[test]
    fn a_plain_box_is_hardened() {
        for way in [by_door(), Way::Far { volume: "v" }] {
            let body = hull_of(&SandboxSpec::default(), way);
            let config = body.host_config.unwrap();
            assert_eq!(config.network_mode.as_deref(), Some("none"));
            assert_eq!(config.privileged, Some(false));
            assert_eq!(config.cap_drop, Some(vec!["ALL".to_owned()]));
            assert!(!config.cap_add.unwrap().iter().any(|cap| cap.contains("SYS_")));
            assert_eq!(config.memory, config.memory_swap);
            assert!(config.pids_limit.is_some_and(|pids| pids > 0));
            assert!(config.security_opt.unwrap().contains(&"no-new-privileges".to_owned()));
            assert!(config.mounts.unwrap().iter().all(|mount| mount.read_only == Some(true)));
            assert_eq!((config.binds, config.volumes_from, config.pid_mode), (None, None, None));
            assert_eq!((config.userns_mode, config.uts_mode, config.devices), (None, None, None));
        }
    }

    #[test]
    fn where_the_engine_sees_nothing_of_ours_nothing_of_its_own_is_mounted_either() {
        let far = Way::Far { volume: "v" };
        let config = hull_of(&SandboxSpec::default(), far).host_config.unwrap();
        let mounts = config.mounts.unwrap();
        let volumes = mounts.iter().filter(|mount| mount.typ == Some(MountType::VOLUME)).count();
        assert_eq!(volumes, 1);
        assert!(config.tmpfs.unwrap()[LANDING].contains("mode=0700"));
        assert!(config.readonly_paths.unwrap().iter().any(|path| path == "/sys/fs/cgroup"));
        let masked = config.masked_paths.unwrap();
        assert!(["/sys/firmware", "/sys/devices"].iter().all(|path| masked.iter().any(|m| m == path)));
    }

    #[test]
    fn a_callers_labels_cannot_be_ours() {
        let labels = [(LABEL_HOME.to_owned(), "other".to_owned()), ("k".to_owned(), "v".to_owned())].into();
        let labels = hull_of(&SandboxSpec { labels, ..SandboxSpec::default() }, by_door()).labels.unwrap();
        assert_eq!(labels.get(LABEL_HOME).map(String::as_str), Some("1-2"));
        assert_eq!(labels.get("k").map(String::as_str), Some("v"));
    }

    #[test]
    fn limits_that_make_no_sense_are_refused() {
        for limits in [
            Limits { memory_bytes: Some(1 << 20), ..Limits::default() },
            Limits { pids: Some(1), ..Limits::default() },
            Limits { cpus: Some(f64::NAN), ..Limits::default() },
            Limits { disk_bytes: Some(5), ..Limits::default() },
        ] {
            assert_eq!(decide(&limits).unwrap_err().kind(), ErrorKind::Invalid, "{limits:?}");
        }
    }
}
