//! OpenTelemetry: what is counted, sent to a collector from time to time.
//!
//! OTLP over HTTP, in JSON, to a collector beside the server (plain HTTP; a collector passes on with TLS). What is sent is what
//! `/metrics` tells, so that the two cannot differ. A collector that does not answer is tried again the next time, and counted.
//! The crates for this bring an SDK with threads, exporters and protobuf; this is one small request.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::error::{Error, Result};

/// A collector has so long to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Where a collector is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collector {
    authority: String,
    path: String,
}

impl Collector {
    /// Reads an address such as `http://127.0.0.1:4318`.
    pub(crate) fn at(endpoint: &str) -> Result<Collector> {
        let refused = |why: &str| Error::Refused(format!("cannot send telemetry to {endpoint:?}: {why}"));
        let uri: Uri = endpoint.parse().map_err(|_| refused("it is no address"))?;
        match (uri.scheme_str(), uri.authority()) {
            (Some("http"), Some(authority)) => {
                let port = authority.port_u16().unwrap_or(4318);
                let path = format!("{}/v1/metrics", uri.path().trim_end_matches('/'));
                Ok(Collector { authority: format!("{}:{port}", authority.host()), path })
            }
            (Some("https"), _) => {
                Err(refused("TLS is a collector's affair; name one that is near, with http://"))
            }
            _ => Err(refused("it has to begin with http://")),
        }
    }

    /// Sends what was measured. Whether it was taken.
    pub(crate) async fn send(&self, measured: &Value) -> bool {
        let sending = async {
            let stream = TcpStream::connect(&self.authority).await.ok()?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
            tokio::spawn(connection);
            let request = Request::post(&self.path)
                .header(header::HOST, &self.authority)
                .header(header::CONTENT_TYPE, "application/json")
                .body(Body::from(measured.to_string()));
            Some(sender.send_request(request.ok()?).await.ok()?.status() == StatusCode::OK)
        };
        tokio::time::timeout(ANSWER, sending).await.ok().flatten().unwrap_or(false)
    }
}

/// What Prometheus would read, as OTLP says it.
pub(crate) fn otlp(text: &str, since_ns: u64, now_ns: u64) -> Value {
    let mut families: BTreeMap<&str, (&str, Vec<Sample<'_>>)> = BTreeMap::new();
    for line in text.lines() {
        match line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            Some((name, kind)) => drop(families.insert(name, (kind, Vec::new()))),
            None => {
                let Some(sample) = Sample::read(line) else { continue };
                let of = |end: &str| sample.name.strip_suffix(end).filter(|name| families.contains_key(name));
                let parts = of("_bucket").or_else(|| of("_sum")).or_else(|| of("_count"));
                let family = parts.unwrap_or(sample.name);
                if let Some((_, samples)) = families.get_mut(family) {
                    samples.push(sample);
                }
            }
        }
    }
    let stamp = |mut point: Value| {
        // Numbers of 64 bits are strings in the JSON of protocol buffers.
        point["startTimeUnixNano"] = json!(since_ns.to_string());
        point["timeUnixNano"] = json!(now_ns.to_string());
        point
    };
    let metric = |(name, (kind, samples)): (&str, (&str, Vec<Sample<'_>>))| {
        let points: Vec<Value> = samples.iter().map(|sample| stamp(sample.point())).collect();
        match kind {
            "counter" => {
                let sum = json!({ "aggregationTemporality": 2, "isMonotonic": true, "dataPoints": points });
                json!({ "name": name, "sum": sum })
            }
            "histogram" => {
                let points = [stamp(histogram(name, &samples))];
                json!({ "name": name, "histogram": { "aggregationTemporality": 2, "dataPoints": points } })
            }
            _ => json!({ "name": name, "gauge": { "dataPoints": points } }),
        }
    };
    let metrics: Vec<Value> = families.into_iter().map(metric).collect();
    let service = json!({ "key": "service.name", "value": { "stringValue": "glasshouse" } });
    let scope = json!({ "name": "glasshouse", "version": env!("CARGO_PKG_VERSION") });
    json!({ "resourceMetrics": [{
        "resource": { "attributes": [service] }, "scopeMetrics": [{ "scope": scope, "metrics": metrics }],
    }] })
}

/// One line of what Prometheus reads.
struct Sample<'a> {
    name: &'a str,
    label: Option<(&'a str, &'a str)>,
    value: f64,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Sample<'a>> {
        let (head, value) = line.rsplit_once(' ')?;
        let value = value.parse().ok()?;
        let (name, label) = match head.split_once('{') {
            Some((name, label)) => {
                let (key, text) = label.strip_suffix('}')?.split_once('=')?;
                (name, Some((key, text.trim_matches('"'))))
            }
            None => (head, None),
        };
        Some(Sample { name, label, value })
    }

    fn point(&self) -> Value {
        let attribute = |(key, text): (&str, &str)| json!({ "key": key, "value": { "stringValue": text } });
        let attributes: Vec<Value> = self.label.into_iter().map(attribute).collect();
        json!({ "attributes": attributes, "asDouble": self.value })
    }
}

/// Prometheus counts all that is below an end; OTLP what is between two.
fn histogram(name: &str, samples: &[Sample<'_>]) -> Value {
    let one = |end: &str| {
        let found = samples.iter().find(|sample| sample.name.strip_prefix(name) == Some(end));
        found.map_or(0.0, |sample| sample.value)
    };
    let (mut bounds, mut counts, mut before) = (Vec::new(), Vec::new(), 0.0);
    for sample in samples.iter().filter(|sample| sample.name.strip_prefix(name) == Some("_bucket")) {
        counts.push(((sample.value - before).max(0.0) as u64).to_string());
        before = sample.value;
        bounds
            .extend(sample.label.and_then(|(_, end)| end.parse::<f64>().ok()).filter(|end| end.is_finite()));
    }
    json!({
        "count": (one("_count") as u64).to_string(), "sum": one("_sum"), "bucketCounts": counts,
        "explicitBounds": bounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_collectors() {
        let at = |endpoint: &str| {
            Collector::at(endpoint).map(|found| format!("{}{}", found.authority, found.path))
        };
        assert_eq!(at("http://127.0.0.1:4318").unwrap(), "127.0.0.1:4318/v1/metrics");
        assert_eq!(at("http://otel/base/").unwrap(), "otel:4318/base/v1/metrics");
        for wrong in ["https://otel", "otel:4318", "", "ftp://otel"] {
            assert!(at(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn all_that_prometheus_reads_is_told() {
        let lines = [
            "# HELP g_requests_total x",
            "# TYPE g_requests_total counter",
            "g_requests_total{status=\"2xx\"} 3",
            "# TYPE g_took histogram",
            "g_took_bucket{le=\"0.5\"} 1",
            "g_took_bucket{le=\"1\"} 4",
            "g_took_bucket{le=\"+Inf\"} 5",
            "g_took_sum 7.5",
            "g_took_count 5",
            "# TYPE g_up gauge",
            "g_up 9",
        ];
        let text = lines.join("\n");
        let told = otlp(&text, 1, 2);
        let metrics = &told["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
        let names: Vec<&Value> = metrics.as_array().unwrap().iter().map(|metric| &metric["name"]).collect();
        assert_eq!(names, ["g_requests_total", "g_took", "g_up"]);
        let point = &metrics[0]["sum"]["dataPoints"][0];
        assert_eq!((&point["asDouble"], &point["attributes"][0]["key"]), (&json!(3.0), &json!("status")));
        assert_eq!((&point["startTimeUnixNano"], &point["timeUnixNano"]), (&json!("1"), &json!("2")));
        let took = &metrics[1]["histogram"]["dataPoints"][0];
        assert_eq!(took["bucketCounts"], json!(["1", "3", "1"]));
        assert_eq!((&took["explicitBounds"], &took["count"]), (&json!([0.5, 1.0]), &json!("5")));
        assert_eq!(metrics[2]["gauge"]["dataPoints"][0]["asDouble"], 9.0);
    }
}
