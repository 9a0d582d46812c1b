//! Writes metrics that were counted elsewhere, one by one, at scrape time.

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;
use std::fmt;

/// Label names and values of one sample, and its value.
pub(crate) type Sample<'a, const NUM_LABELS: usize> = ([(&'a str, &'a str); NUM_LABELS], u64);

/// Writes metrics one by one.
pub(crate) struct MetricWriter<'a, 'e> {
    pub(crate) encoder: &'a mut DescriptorEncoder<'e>,
}

impl MetricWriter<'_, '_> {
    /// Writes a gauge.
    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.descriptor(name, help, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// Writes a counter.
    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        encode_count(self.descriptor(name, help, MetricType::Counter)?, value)
    }

    /// Writes a gauge with its samples.
    pub(crate) fn gauges<const NUM_LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: &[Sample<'_, NUM_LABELS>],
    ) -> fmt::Result {
        let mut metric = self.descriptor(name, help, MetricType::Gauge)?;
        for (labels, value) in samples {
            metric.encode_family(labels)?.encode_gauge(value)?;
        }
        Ok(())
    }

    /// Writes a counter with its samples.
    pub(crate) fn counters<const NUM_LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: &[Sample<'_, NUM_LABELS>],
    ) -> fmt::Result {
        let mut metric = self.descriptor(name, help, MetricType::Counter)?;
        for (labels, value) in samples {
            encode_count(metric.encode_family(labels)?, *value)?;
        }
        Ok(())
    }

    /// Writes a gauge in seconds.
    pub(crate) fn gauge_seconds(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let kind = MetricType::Gauge;
        let unit = Some(&Unit::Seconds);
        self.encoder.encode_descriptor(name, help, unit, kind)?.encode_gauge(&value)
    }

    /// Writes a histogram in seconds.
    pub(crate) fn histogram_seconds(
        &mut self,
        name: &str,
        help: &str,
        histogram: &Histogram,
    ) -> fmt::Result {
        let kind = histogram.metric_type();
        let unit = Some(&Unit::Seconds);
        histogram.encode(self.encoder.encode_descriptor(name, help, unit, kind)?)
    }

    /// Writes a histogram in seconds with its samples.
    pub(crate) fn histograms_seconds<const NUM_LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: &[([(&str, &str); NUM_LABELS], &Histogram)],
    ) -> fmt::Result {
        let unit = Some(&Unit::Seconds);
        let mut metric = self.encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        for (labels, histogram) in samples {
            histogram.encode(metric.encode_family(labels)?)?;
        }
        Ok(())
    }

    /// Writes a gauge of one sample.
    pub(crate) fn labelled_gauge(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        value: f64,
    ) -> fmt::Result {
        let mut metric = self.descriptor(name, help, MetricType::Gauge)?;
        metric.encode_family(&labels)?.encode_gauge(&value)
    }

    /// Writes a histogram in seconds, of one sample.
    pub(crate) fn labelled_histogram_seconds(
        &mut self,
        name: &str,
        help: &str,
        labels: &[(&str, &str)],
        histogram: &Histogram,
    ) -> fmt::Result {
        let kind = histogram.metric_type();
        let unit = Some(&Unit::Seconds);
        let mut metric = self.encoder.encode_descriptor(name, help, unit, kind)?;
        histogram.encode(metric.encode_family(&labels)?)
    }

    fn descriptor<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.encoder.encode_descriptor(name, help, None, kind)
    }
}

fn encode_count(mut metric: MetricEncoder<'_>, value: u64) -> fmt::Result {
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
}
