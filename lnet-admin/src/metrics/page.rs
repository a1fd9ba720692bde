//! Metrics as a page: families of samples, in the forms that Prometheus reads.

use std::borrow::Cow;
use std::fmt;

use lnet_core::stats::Histogram;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Names and values that tell one sample of a family from another.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The form of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Prometheus' own text, version 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl Form {
    /// The form that a client prefers, by what it accepts.
    pub(super) fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The value of a sample.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Reading {
    Counter(u64),
    Gauge(i64),
    /// A gauge of 1 that only has labels.
    Info,
    Histogram {
        histogram: Box<Histogram>,
        total_ns: u64,
    },
}

impl Reading {
    const fn metric_type(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Info => MetricType::Info,
            Self::Histogram { .. } => MetricType::Histogram,
        }
    }
}

#[derive(Debug)]
struct Family {
    name: Cow<'static, str>,
    help: &'static str,
    samples: Vec<(Labels, Reading)>,
}

/// All families, in the order in which they were first named.
#[derive(Debug, Default)]
pub(super) struct Page(Vec<Family>);

impl Page {
    /// Adds a sample to a family, which is told by its name: counters without `_total`, infos without
    /// `_info`.
    pub(super) fn add(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        help: &'static str,
        labels: Labels,
        value: Reading,
    ) {
        let name = name.into();
        let sample = (labels, value);
        match self.0.iter_mut().find(|family| family.name == name) {
            Some(family) => family.samples.push(sample),
            None => self.0.push(Family { name, help, samples: vec![sample] }),
        }
    }

    /// The page as text.
    pub(super) fn text(self, form: Form) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut page = String::new();
        match form {
            Form::Prometheus => prometheus_text::encode(&mut page, &registry)?,
            Form::OpenMetrics => text::encode(&mut page, &registry)?,
        }
        Ok(page)
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { name, help, samples } in &self.0 {
            let Some((_, first)) = samples.first() else { continue };
            let mut family = encoder.encode_descriptor(name, help, None, first.metric_type())?;
            for (labels, value) in samples {
                if let Reading::Info = value {
                    family.encode_info(labels)?;
                    continue;
                }
                let mut metric = family.encode_family(labels)?;
                match value {
                    Reading::Counter(count) => metric.encode_counter::<NoLabelSet, _, u64>(count, None)?,
                    Reading::Gauge(value) => metric.encode_gauge(value)?,
                    Reading::Histogram { histogram, total_ns } => {
                        let seconds = |ns: u64| ns as f64 / 1e9;
                        let bound = |bound: Option<u64>| bound.map_or(f64::INFINITY, seconds);
                        let buckets: Vec<_> =
                            histogram.buckets().map(|(end, count)| (bound(end), count)).collect();
                        let count = histogram.count();
                        metric.encode_histogram::<NoLabelSet>(seconds(*total_ns), count, &buckets, None)?;
                    }
                    Reading::Info => {}
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_told_once_in_either_form() {
        let page = || {
            let mut page = Page::default();
            let labels = |nid: &str| vec![("nid", nid.to_owned())];
            page.add("sent", "Messages sent", labels("a\"b"), Reading::Counter(1));
            page.add("credits", "Credits", Labels::new(), Reading::Gauge(-2));
            page.add("sent", "Messages sent", labels("c"), Reading::Counter(u64::MAX));
            page.add("node", "This node", vec![("version", "1".to_owned())], Reading::Info);
            page
        };
        let prometheus = "# HELP sent_total Messages sent\n# TYPE sent_total counter\n\
            sent_total{nid=\"a\\\"b\"} 1\nsent_total{nid=\"c\"} 18446744073709551615\n\
            # HELP credits Credits\n# TYPE credits gauge\ncredits -2\n\
            # HELP node_info This node\n# TYPE node_info gauge\nnode_info{version=\"1\"} 1\n";
        assert_eq!(page().text(Form::Prometheus).unwrap(), prometheus);
        let open = "# HELP sent Messages sent\n# TYPE sent counter\n\
            sent_total{nid=\"a\\\"b\"} 1\nsent_total{nid=\"c\"} 18446744073709551615\n\
            # HELP credits Credits\n# TYPE credits gauge\ncredits -2\n\
            # HELP node This node\n# TYPE node info\nnode_info{version=\"1\"} 1\n# EOF\n";
        assert_eq!(page().text(Form::OpenMetrics).unwrap(), open);
    }

    #[test]
    fn clients_get_the_form_that_they_accept() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(Form::accepted(prometheus), Form::OpenMetrics);
        assert_eq!(Form::accepted("*/*"), Form::Prometheus);
    }
}
