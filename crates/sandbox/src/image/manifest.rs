//! What registries and archives say of an image: indexes, manifests and configurations, all of them somebody else's words.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::reference::is_digest;
use crate::error::{Error, ErrorKind, Result};

/// Layers of one image; more than any builder makes.
pub(crate) const LAYERS_MAX: usize = 127;
/// An index, a manifest or a configuration.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// One layer, as it is sent.
pub(crate) const BLOB_BYTES_MAX: u64 = 32 << 30;

/// The note by which an index names what it leads to.
pub(crate) const NAME_NOTE: &str = "org.opencontainers.image.ref.name";

/// The types of documents that are understood, most wanted first.
pub(crate) const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json";

/// Something that is named by its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// `sha256:…`
    pub(crate) digest: String,
    pub(crate) size: u64,
}

/// An image's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) config: Descriptor,
    /// Lowest first.
    pub(crate) layers: Vec<Descriptor>,
}

/// A document that leads to an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Document {
    /// Images for several machines, of which this one fits.
    Index(Descriptor),
    Manifest(Manifest),
}

/// For which machine an image is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

/// How an image wants its commands to be run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// Environment, in the image's order.
    pub env: Vec<(String, String)>,
    /// What runs when no command is given, before `cmd`.
    pub entrypoint: Vec<String>,
    /// What runs when no command is given, or the entrypoint's arguments.
    pub cmd: Vec<String>,
    /// User of commands; empty means root.
    pub user: String,
    /// Working directory; empty means `/`.
    pub workdir: String,
    /// Words of the image's maker.
    pub labels: BTreeMap<String, String>,
    /// `amd64`, `arm64` …
    pub architecture: String,
}

/// A configuration, with the digests of the layers' contents, lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) image: ImageConfig,
    /// The machine that it is for, if that is told.
    pub(crate) platform: Option<Platform>,
    pub(crate) diff_ids: Vec<String>,
}

/// The digest of some bytes.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    digest_text(&Sha256::digest(bytes))
}

pub(crate) fn digest_text(hash: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in hash {
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// One name for a layer on exactly these others: the digest that the layers' order gives. Lowest first.
pub(crate) fn chain_id(diff_ids: &[String]) -> String {
    let mut ids = diff_ids.iter();
    let first = ids.next().cloned().unwrap_or_default();
    ids.fold(first, |chain, id| digest_of(format!("{chain} {id}").as_bytes()))
}

impl Platform {
    /// `linux/amd64`, `linux/arm64/v8`, or this machine's.
    pub(crate) fn parse(text: Option<&str>) -> Result<Platform> {
        let Some(text) = text else { return Ok(Platform::own()) };
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => ("", "", None),
        };
        if os.is_empty() || architecture.is_empty() {
            let message = format!("{text:?} is no platform; say it like linux/amd64 or linux/arm/v7");
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Platform { os: os.into(), architecture: architecture.into(), variant })
    }

    fn own() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Platform { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// Whether an image that came without an index, so without a choice, is for this machine.
    pub(crate) fn check(&self, config: &Config) -> Result<()> {
        let Some(of) = &config.platform else { return Ok(()) };
        let same_variant = match (&self.variant, &of.variant) {
            (Some(wanted), Some(of)) => wanted == of,
            _ => true,
        };
        if of.os == self.os && of.architecture == self.architecture && same_variant {
            return Ok(());
        }
        let message = format!("the image is for {of} alone, and {self} is wanted");
        Err(Error::new(ErrorKind::NotFound, message))
    }

    fn fits(&self, value: &Value) -> bool {
        let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
        text("os") == self.os
            && text("architecture") == self.architecture
            && self.variant.as_deref().is_none_or(|variant| variant == text("variant"))
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the image is not understood: {what}"))
}

fn json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes).map_err(|e| broken(&format!("it is no JSON: {e}")))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    let list = value.get(key).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| broken(&format!("it has no {key}")))
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn descriptor(value: &Value, size_max: u64) -> Result<Descriptor> {
    let digest = value.get("digest").and_then(Value::as_str).filter(|digest| is_digest(digest));
    let digest = digest.ok_or_else(|| broken("a part has no digest by sha256"))?.to_owned();
    let size = value.get("size").and_then(Value::as_u64).ok_or_else(|| broken("a part has no size"))?;
    if size > size_max {
        let message = format!("the image's part {digest} claims {size} bytes; {size_max} are the most");
        return Err(Error::new(ErrorKind::Limit, message));
    }
    Ok(Descriptor { digest, size })
}

/// Reads an index or a manifest.
pub(crate) fn document(bytes: &[u8], platform: &Platform) -> Result<Document> {
    let value = json(bytes)?;
    if value.get("schemaVersion").and_then(Value::as_u64) != Some(2) {
        return Err(broken("it is of an old kind (schema 1); push it again with a tool of this decade"));
    }
    if let Some(manifests) = value.get("manifests").and_then(Value::as_array) {
        return index(manifests, platform).map(Document::Index);
    }
    let config = value.get("config").ok_or_else(|| broken("it has no config"))?;
    let config = descriptor(config, DOCUMENT_BYTES_MAX)?;
    let layers = list(&value, "layers")?;
    check_count(layers.len())?;
    let layers = layers.iter().map(|layer| descriptor(layer, BLOB_BYTES_MAX)).collect::<Result<_>>()?;
    Ok(Document::Manifest(Manifest { config, layers }))
}

pub(crate) fn check_count(layers: usize) -> Result<()> {
    if layers > LAYERS_MAX {
        let message = format!("the image has {layers} layers; {LAYERS_MAX} are the most");
        return Err(Error::new(ErrorKind::Limit, message));
    }
    Ok(())
}

fn index(manifests: &[Value], platform: &Platform) -> Result<Descriptor> {
    let of = |value: &Value| value.get("platform").filter(|of| !of.is_null()).cloned();
    let fitting = manifests.iter().find(|value| of(value).is_some_and(|of| platform.fits(&of)));
    // Local tools write indexes without a word on the machine, with an entry for each tag of one image.
    let silent = match manifests {
        [first, ..] if manifests.iter().all(|value| of(value).is_none()) => Some(first),
        _ => None,
    };
    let is_same = |first: &&Value| manifests.iter().all(|value| value.get("digest") == first.get("digest"));
    if let Some(value) = fitting.or(silent.filter(is_same)) {
        return descriptor(value, DOCUMENT_BYTES_MAX);
    }
    if silent.is_some() {
        return Err(several(manifests));
    }
    if manifests.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "there is no image in it"));
    }
    let text = |of: &Value, key: &str| of.get(key).and_then(Value::as_str).unwrap_or("?").to_owned();
    let there: Vec<String> = manifests
        .iter()
        .filter_map(of)
        .map(|of| format!("{}/{}", text(&of, "os"), text(&of, "architecture")))
        .filter(|name| name != "unknown/unknown")
        .take(20)
        .collect();
    let message = format!("there is no image for {platform}, only for {}", there.join(", "));
    Err(Error::new(ErrorKind::NotFound, message))
}

/// Images of which none can be preferred.
fn several(manifests: &[Value]) -> Error {
    let name = |value: &Value| {
        let name = value.get("annotations").and_then(|notes| notes.get(NAME_NOTE)).or(value.get("digest"));
        name.and_then(Value::as_str).unwrap_or("?").escape_debug().to_string()
    };
    let names: Vec<String> = manifests.iter().map(name).take(20).collect();
    let message = format!(
        "there are {} images in it, and nothing says for which machines they are: {}; take the one that is wanted \
         into a file of its own",
        manifests.len(),
        names.join(", ")
    );
    Error::new(ErrorKind::Invalid, message)
}

/// Reads a configuration.
pub(crate) fn config(bytes: &[u8]) -> Result<Config> {
    let value = json(bytes)?;
    let rootfs = value.get("rootfs").ok_or_else(|| broken("its configuration names no layers"))?;
    let diff_ids = strings(rootfs, "diff_ids");
    check_count(diff_ids.len())?;
    if diff_ids.len() != list(rootfs, "diff_ids")?.len() || !diff_ids.iter().all(|id| is_digest(id)) {
        return Err(broken("its configuration names layers by something else than sha256"));
    }
    let config = value.get("config").unwrap_or(&Value::Null);
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let variable = |text: String| {
        let (key, value) = text.split_once('=')?;
        let good = !key.is_empty() && !text.contains('\0');
        good.then(|| (key.to_owned(), value.to_owned()))
    };
    let labels = config.get("Labels").and_then(Value::as_object).into_iter().flatten();
    let image = ImageConfig {
        env: strings(config, "Env").into_iter().filter_map(variable).collect(),
        entrypoint: strings(config, "Entrypoint"),
        cmd: strings(config, "Cmd"),
        user: text(config, "User"),
        workdir: text(config, "WorkingDir"),
        labels: labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect(),
        architecture: text(&value, "architecture"),
    };
    // Some builders write the kernel's words.
    let architecture = match image.architecture.as_str() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let word = |key: &str| Some(text(&value, key)).filter(|text| !text.is_empty());
    let platform = (!architecture.is_empty()).then(|| Platform {
        os: word("os").unwrap_or_else(|| "linux".to_owned()),
        architecture: architecture.to_owned(),
        variant: word("variant"),
    });
    Ok(Config { image, platform, diff_ids })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn digest(digit: &str) -> String {
        format!("sha256:{}", digit.repeat(64))
    }

    fn amd64() -> Platform {
        Platform::parse(Some("linux/amd64")).unwrap()
    }

    #[test]
    fn an_index_gives_the_image_of_the_machine() {
        let part = |os: &str, arch: &str, digit: &str| json!({"digest": digest(digit), "size": 5, "platform": {"os": os, "architecture": arch}});
        let value = json!({"schemaVersion": 2, "manifests": [
            part("unknown", "unknown", "0"), part("linux", "arm64", "1"), part("linux", "amd64", "2"),
        ]});
        let bytes = value.to_string();
        let found = document(bytes.as_bytes(), &amd64()).unwrap();
        assert_eq!(found, Document::Index(Descriptor { digest: digest("2"), size: 5 }));
        let none = document(bytes.as_bytes(), &Platform::parse(Some("linux/s390x")).unwrap()).unwrap_err();
        assert_eq!(none.to_string(), "there is no image for linux/s390x, only for linux/arm64, linux/amd64");
    }

    #[test]
    fn tags_of_one_image_are_one_and_several_images_are_told() {
        let part = |digit: &str, tag: &str| json!({"digest": digest(digit), "size": 5, "annotations": {NAME_NOTE: tag}});
        let found = |parts: [Value; 2]| {
            document(json!({"schemaVersion": 2, "manifests": parts}).to_string().as_bytes(), &amd64())
        };
        let one = found([part("1", "a"), part("1", "b")]).unwrap();
        assert_eq!(one, Document::Index(Descriptor { digest: digest("1"), size: 5 }));
        let sentence = found([part("1", "a"), part("2", "b")]).unwrap_err().to_string();
        assert!(sentence.contains("2 images in it") && sentence.contains("a, b"), "{sentence}");
        let none = document(json!({"schemaVersion": 2, "manifests": []}).to_string().as_bytes(), &amd64());
        assert_eq!(none.unwrap_err().to_string(), "there is no image in it");
    }

    #[test]
    fn an_image_without_an_index_is_for_the_machine_that_it_names() {
        let of = |machine: Value| {
            let mut value = json!({"rootfs": {"diff_ids": []}});
            value.as_object_mut().unwrap().extend(machine.as_object().unwrap().clone());
            config(value.to_string().as_bytes()).unwrap()
        };
        for fitting in
            [json!({}), json!({"architecture": "amd64"}), json!({"architecture": "x86_64", "os": "linux"})]
        {
            amd64().check(&of(fitting)).unwrap();
        }
        let sentence = amd64().check(&of(json!({"architecture": "arm64"}))).unwrap_err().to_string();
        assert_eq!(sentence, "the image is for linux/arm64 alone, and linux/amd64 is wanted");
        assert!(amd64().check(&of(json!({"architecture": "amd64", "os": "windows"}))).is_err());
    }

    #[test]
    fn huge_and_senseless_claims_are_refused() {
        let layer = |size: u64| json!({"digest": digest("2"), "size": size});
        let manifest = |layers: Vec<Value>| {
            let config = json!({"digest": digest("1"), "size": 5});
            document(
                json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string().as_bytes(),
                &amd64(),
            )
        };
        assert!(manifest(vec![layer(5)]).is_ok());
        assert_eq!(manifest(vec![layer(u64::MAX)]).unwrap_err().kind(), ErrorKind::Limit);
        assert_eq!(manifest(vec![layer(1); LAYERS_MAX + 1]).unwrap_err().kind(), ErrorKind::Limit);
        assert!(manifest(vec![json!({"digest": "sha256:../../x", "size": 1})]).is_err());
        for text in ["", "[]", "{}", "{\"schemaVersion\":1}", "{\"schemaVersion\":2}", "\u{0}"] {
            assert!(document(text.as_bytes(), &amd64()).is_err(), "{text}");
            assert!(config(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_configuration_says_how_commands_are_run() {
        let value = json!({"architecture": "amd64", "rootfs": {"diff_ids": [digest("1")]}, "config": {
            "Env": ["A=b=c", "broken", "=x"], "Entrypoint": ["/e"], "Cmd": ["c"], "User": "app",
            "WorkingDir": "/srv", "Labels": {"k": "v"},
        }});
        let read = config(value.to_string().as_bytes()).unwrap();
        assert_eq!(read.image.env, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!((read.image.user.as_str(), read.image.workdir.as_str()), ("app", "/srv"));
        assert_eq!(read.diff_ids, [digest("1")]);
    }

    #[test]
    fn the_name_of_a_chain_is_the_one_that_other_tools_give_it() {
        let ids = [digest("1"), digest("2")];
        assert_eq!(chain_id(&ids[..1]), ids[0]);
        assert_eq!(chain_id(&ids), digest_of(format!("{} {}", ids[0], ids[1]).as_bytes()));
    }
}
