//! Our system call filter in the words of a container engine.
//!
//! The engine's filter stands from the first instruction of the box's first process on. That process loads our own one
//! on top, which judges arguments as well; the kernel takes the harsher answer. So calls that are judged by their
//! arguments pass here.

use glasshouse_linux::seccomp;
use serde_json::{Value, json};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// The filter as the engine's JSON.
pub(super) fn profile() -> String {
    let lists = seccomp::lists();
    let passing: Vec<&str> = lists.allowed.iter().chain(&lists.judged).copied().collect();
    let rule = |names: &[&str], action: &str, errno: Option<u32>| -> Value {
        match errno {
            Some(errno) => json!({"names": names, "action": action, "errnoRet": errno}),
            None => json!({"names": names, "action": action}),
        }
    };
    // No architecture but the machine's own: calls of a foreign one are the end of whoever makes them.
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ENOSYS,
        "architectures": [architecture()],
        "syscalls": [
            rule(&passing, "SCMP_ACT_ALLOW", None),
            rule(&lists.refused, "SCMP_ACT_ERRNO", Some(EPERM)),
            rule(&lists.absent, "SCMP_ACT_ERRNO", Some(ENOSYS)),
        ],
    })
    .to_string()
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_named_fails_and_dangerous_calls_do_not_pass() {
        let profile: Value = serde_json::from_str(&profile()).unwrap();
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let rules = profile["syscalls"].as_array().unwrap();
        let passes = |name: &str| {
            let names = rules.iter().filter(|rule| rule["action"] == "SCMP_ACT_ALLOW");
            names.flat_map(|rule| rule["names"].as_array().unwrap()).any(|n| n == name)
        };
        for name in ["read", "execve", "socket", "seccomp", "landlock_restrict_self"] {
            assert!(passes(name), "{name}");
        }
        for name in ["mount", "unshare", "setns", "bpf", "io_uring_setup", "ptrace", "keyctl", "chroot"] {
            assert!(!passes(name), "{name}");
        }
    }
}
