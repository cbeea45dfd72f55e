//! Routes: who is subscribed to a topic, found once and kept until a filter changes that matters.
//!
//! A route is valid while the generation of its topic's first level, and that of filters that begin
//! with a wildcard, stay the same.

use std::collections::HashMap;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::tree::{Options, Tree};

/// First levels whose changes are counted one by one.
const FIRST_LEVELS_MAX: usize = 65_536;
const MATCHES_MAX: usize = 4_096;
/// Routes with more subscribers are not compared with others.
const SHARED_ENTRIES_MAX: usize = 8;

type Generation = (u64, u64);
type MatchKey = (u8, bool, bool, Vec<u32>);

struct Classes {
    route: Py<PyAny>,
    of_options: Py<PyAny>,
}

fn classes(py: Python<'_>) -> PyResult<&'static Classes> {
    static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();
    CLASSES.get_or_try_init(py, || {
        let module = py.import("penstock.brokers.mqtt.subscriptions.interface")?;
        Ok(Classes {
            route: module.getattr("Route")?.unbind(),
            of_options: module.getattr("Match")?.unbind(),
        })
    })
}

#[pyclass(module = "penstock._native", name = "MqttSubscriptionTree")]
pub struct SubscriptionTree {
    tree: Tree<Py<PyAny>>,
    changes: u64,
    wildcard_change: u64,
    first_level_changes: HashMap<Box<str>, u64>,
    matches: HashMap<MatchKey, Py<PyAny>>,
    #[pyo3(get)]
    incomplete: u64,
}

/// What the subscriptions of one subscriber ask for together.
struct Combined<'a> {
    subscriber: &'a Py<PyAny>,
    number: i64,
    options: Options,
    identifiers: Vec<u32>,
}

impl<'a> Combined<'a> {
    fn add(&mut self, options: Options) {
        self.options.qos = self.options.qos.max(options.qos);
        self.options.no_local &= options.no_local;
        self.options.retain_as_published |= options.retain_as_published;
        self.identifiers.extend((options.identifier > 0).then_some(options.identifier));
    }

    fn key(&self) -> MatchKey {
        let mut identifiers = self.identifiers.clone();
        identifiers.sort_unstable();
        identifiers.dedup();
        let Options { qos, no_local, retain_as_published, .. } = self.options;
        (qos, no_local, retain_as_published, identifiers)
    }
}

fn first_level(topic: &str) -> &str {
    topic.split('/').next().unwrap_or("")
}

impl SubscriptionTree {
    fn generation_of(&self, topic: &str) -> Generation {
        let change = self.first_level_changes.get(first_level(topic)).copied();
        (self.wildcard_change, change.unwrap_or(0))
    }

    fn changed(&mut self, filter: &str) {
        self.changes += 1;
        let first = first_level(filter);
        let is_full = self.first_level_changes.len() >= FIRST_LEVELS_MAX;
        if is_full || first == "+" || first == "#" {
            self.wildcard_change = self.changes;
            self.first_level_changes.clear();
        } else if let Some(change) = self.first_level_changes.get_mut(first) {
            *change = self.changes;
        } else {
            self.first_level_changes.insert(first.into(), self.changes);
        }
    }

    fn combine(&self, topic: &str) -> (Vec<Combined<'_>>, bool) {
        let mut found: Vec<Combined<'_>> = Vec::new();
        let mut places: HashMap<i64, usize> = HashMap::new();
        let is_complete = self.tree.each_match(topic, |entry| {
            let number = entry.key.number;
            let place = *places.entry(number).or_insert(found.len());
            if let Some(known) = found.get_mut(place) {
                known.add(entry.options);
                return;
            }
            let identifier = entry.options.identifier;
            found.push(Combined {
                subscriber: &entry.subscriber,
                number,
                options: entry.options,
                identifiers: if identifier > 0 { vec![identifier] } else { Vec::new() },
            });
        });
        (found, is_complete)
    }

    /// The route of a topic, its subscribers' numbers with their matches, and whether it is complete.
    fn route<'py>(&mut self, py: Python<'py>, topic: &str) -> PyResult<Found<'py>> {
        let (combined, is_complete) = self.combine(topic);
        let mut wanted = Vec::with_capacity(combined.len());
        for each in &combined {
            wanted.push((each.subscriber.clone_ref(py), each.number, each.key()));
        }
        let entries = PyList::empty(py);
        let mut key = Vec::new();
        let keeps_key = wanted.len() <= SHARED_ENTRIES_MAX;
        for (subscriber, number, options) in wanted {
            let matched = self.matched(py, options)?;
            if keeps_key {
                key.push((number, subscriber.as_ptr() as usize, matched.as_ptr() as usize));
            }
            entries.append((subscriber, matched))?;
        }
        self.incomplete += u64::from(!is_complete);
        let route = classes(py)?.route.bind(py).call1((entries,))?;
        Ok(Found { route, key: keeps_key.then_some(key) })
    }

    /// The `Match` for options, which is shared.
    fn matched(&mut self, py: Python<'_>, key: MatchKey) -> PyResult<Py<PyAny>> {
        if let Some(known) = self.matches.get(&key) {
            return Ok(known.clone_ref(py));
        }
        if self.matches.len() >= MATCHES_MAX {
            self.matches.clear();
        }
        let (qos, no_local, retain_as_published, identifiers) = &key;
        let options = PyDict::new(py);
        options.set_item("no_local", no_local)?;
        options.set_item("retain_as_published", retain_as_published)?;
        options.set_item("identifiers", PyTuple::new(py, identifiers)?)?;
        let made = classes(py)?.of_options.bind(py).call((qos,), Some(&options))?.unbind();
        self.matches.insert(key, made.clone_ref(py));
        Ok(made)
    }
}

struct Found<'py> {
    route: Bound<'py, PyAny>,
    key: Option<Vec<(i64, usize, usize)>>,
}

/// The fields of a `Subscription` that the tree needs.
struct Fields<'py> {
    filter: Bound<'py, PyString>,
    inner: Bound<'py, PyString>,
}

impl<'py> Fields<'py> {
    fn read(subscription: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = subscription.py();
        Ok(Self {
            filter: subscription.getattr(pyo3::intern!(py, "filter"))?.cast_into()?,
            inner: subscription.getattr(pyo3::intern!(py, "inner"))?.cast_into()?,
        })
    }
}

fn number_of(subscriber: &Bound<'_, PyAny>) -> PyResult<i64> {
    subscriber.getattr(pyo3::intern!(subscriber.py(), "number"))?.extract()
}

fn options_of(subscription: &Bound<'_, PyAny>) -> PyResult<Options> {
    let py = subscription.py();
    Ok(Options {
        qos: subscription.getattr(pyo3::intern!(py, "qos"))?.extract()?,
        no_local: subscription.getattr(pyo3::intern!(py, "no_local"))?.is_truthy()?,
        retain_as_published: subscription
            .getattr(pyo3::intern!(py, "retain_as_published"))?
            .is_truthy()?,
        identifier: subscription.getattr(pyo3::intern!(py, "identifier"))?.extract()?,
    })
}

#[pymethods]
impl SubscriptionTree {
    #[new]
    fn new(steps_max: usize) -> Self {
        Self {
            tree: Tree::new(steps_max),
            changes: 0,
            wildcard_change: 0,
            first_level_changes: HashMap::new(),
            matches: HashMap::new(),
            incomplete: 0,
        }
    }

    fn __len__(&self) -> usize {
        self.tree.len()
    }

    fn generation(&self, topic: &str) -> Generation {
        self.generation_of(topic)
    }

    fn add(
        &mut self,
        subscriber: &Bound<'_, PyAny>,
        subscription: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let fields = Fields::read(subscription)?;
        let inner = fields.inner.to_str()?;
        let key = self.tree.key(number_of(subscriber)?, fields.filter.to_str()?, inner);
        self.tree.add(inner, key, subscriber.clone().unbind(), options_of(subscription)?);
        self.changed(inner);
        Ok(())
    }

    fn remove(
        &mut self,
        subscriber: &Bound<'_, PyAny>,
        subscription: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let fields = Fields::read(subscription)?;
        let inner = fields.inner.to_str()?;
        let key = self.tree.key(number_of(subscriber)?, fields.filter.to_str()?, inner);
        let removed = self.tree.remove(inner, key);
        if removed.is_some() {
            self.changed(inner);
        }
        Ok(removed.is_some())
    }

    #[pyo3(name = "match")]
    fn match_topic<'py>(&mut self, py: Python<'py>, topic: &str) -> PyResult<Bound<'py, PyAny>> {
        Ok(self.route(py, topic)?.route)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for subscriber in self.tree.subscribers() {
            visit.call(subscriber)?;
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        self.tree.clear();
    }
}

/// The routes of recently used topics, in two halves: what was used since the last change of halves
/// is in the young one, and the old one is dropped when the young one is full.
#[pyclass(module = "penstock._native", name = "MqttRouteCache")]
pub struct RouteCache {
    tree: Py<SubscriptionTree>,
    half: usize,
    young: HashMap<Box<str>, Cached>,
    old: HashMap<Box<str>, Cached>,
    shared: HashMap<Vec<(i64, usize, usize)>, Py<PyAny>>,
    #[pyo3(get)]
    misses: u64,
}

struct Cached {
    route: Py<PyAny>,
    generation: Generation,
}

#[pymethods]
impl RouteCache {
    #[new]
    fn new(tree: Py<SubscriptionTree>, topics_max: usize) -> Self {
        Self {
            tree,
            half: (topics_max / 2).max(1),
            young: HashMap::new(),
            old: HashMap::new(),
            shared: HashMap::new(),
            misses: 0,
        }
    }

    fn __len__(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Return who is subscribed to a topic.
    fn find<'py>(&mut self, py: Python<'py>, topic: &str) -> PyResult<Bound<'py, PyAny>> {
        self.route_of(py, topic)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tree)?;
        for cached in self.young.values().chain(self.old.values()) {
            visit.call(&cached.route)?;
        }
        for route in self.shared.values() {
            visit.call(route)?;
        }
        Ok(())
    }

    fn __clear__(&mut self) {
        self.young.clear();
        self.old.clear();
        self.shared.clear();
    }
}

impl RouteCache {
    pub fn route_of<'py>(&mut self, py: Python<'py>, topic: &str) -> PyResult<Bound<'py, PyAny>> {
        let generation = self.tree.borrow(py).generation_of(topic);
        if let Some(cached) = self.young.get(topic).filter(|known| known.generation == generation) {
            return Ok(cached.route.bind(py).clone());
        }
        let known = self.old.remove(topic).filter(|known| known.generation == generation);
        let route = match known {
            Some(cached) => cached.route,
            None => {
                self.misses += 1;
                let found = self.tree.borrow_mut(py).route(py, topic)?;
                self.share(found)
            }
        };
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        let cached = Cached { route: route.clone_ref(py), generation };
        self.young.insert(topic.into(), cached);
        Ok(route.into_bound(py))
    }

    pub fn has_subscribers(&mut self, py: Python<'_>, topic: &str) -> PyResult<bool> {
        let route = self.route_of(py, topic)?;
        Ok(route.getattr(pyo3::intern!(py, "entries"))?.len()? > 0)
    }

    /// The route of another topic with the same subscribers, so that messages of both make one run.
    /// A route holds what its key names, so the same places are the same objects.
    fn share(&mut self, found: Found<'_>) -> Py<PyAny> {
        let route = found.route.unbind();
        let Some(key) = found.key else {
            return route;
        };
        if self.shared.len() >= self.half {
            self.shared.clear();
        }
        Python::attach(|py| self.shared.entry(key).or_insert(route).clone_ref(py))
    }
}
