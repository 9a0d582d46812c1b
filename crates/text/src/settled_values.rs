//! What the values that a chat template gives names to may hold.
//!
//! A settled value has no lazy lists in it, is nested to a bounded depth, and is bounded in what a
//! walk through it meets, values that stand in several places counted each time. So printing,
//! comparing or dropping one takes bounded stack and memory. Namespaces and loops take only plain
//! data, and so never come to lie inside themselves; the arguments a namespace is made with are
//! settled.
//! [`template_bindings`](crate::template_bindings) says where values are checked.
//!
//! A check costs a walk through the value, paid for with fuel; lists of plain data are remembered by
//! their address for as long as they live, and walked once. What the engine does not charge for,
//! comparing inner lists, is bounded by time.

use minijinja::value::{DynObject, ObjectRepr, Tuple, ValueOrKwargs};
use minijinja::{Error, ErrorKind, State, Value};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most lists inside one another; JSON from clients has at most 128.
const MAX_DEPTH: usize = 256;
/// Most values that a walk meets; a chat of a megabyte has about 20,000.
const MAX_VALUES: usize = 1 << 20;
/// Most bytes of text that a walk meets: twice what a request may have.
const MAX_TEXT_BYTES: usize = 32 << 20;
/// Visits that cost as much as one of the template's instructions.
const VISITS_PER_FUEL: usize = 8;
/// Visits that an item of a new list costs; as much as its memory costs elsewhere.
const VISITS_PER_NEW_ITEM: usize = 2;
/// Longest time of a render; usual ones take a ten-thousandth of it.
const MAX_TIME: Duration = Duration::from_secs(10);

/// The filter for a value that gets a name.
pub(crate) fn settled_value(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    check_time(state)?;
    settled(state, value).map(|(value, _)| value)
}

/// The filter for a value that is put into a namespace, or that a loop is to remember.
pub(crate) fn storable_value(state: &mut State<'_, '_>, value: &Value) -> Result<Value, Error> {
    check_time(state)?;
    let (value, extent) = settled(state, value)?;
    if extent.is_plain {
        Ok(value)
    } else {
        Err(refused("namespaces and loops hold only plain data"))
    }
}

/// Returns about how many bytes a value is as text, and not fewer.
pub(crate) fn text_bytes(state: &mut State<'_, '_>, value: &Value) -> Result<usize, Error> {
    /// Brackets, separators and digits.
    const BYTES_PER_VALUE: usize = 32;
    let (_, extent) = settled(state, value)?;
    Ok(2 * extent.num_text_bytes + BYTES_PER_VALUE * extent.num_values)
}

/// The filter for both sides of a multiplication, which would make a list of any length.
pub(crate) fn factor_value(value: &Value) -> Result<Value, Error> {
    if value.as_object().is_some() {
        return Err(refused("lists cannot be multiplied in a chat template"));
    }
    Ok(value.clone())
}

/// The function `namespace`.
pub(crate) fn namespace(
    state: &mut State<'_, '_>,
    defaults: Option<ValueOrKwargs>,
) -> Result<Value, Error> {
    let Some(defaults) = defaults.map(ValueOrKwargs::into_value) else {
        return minijinja::functions::namespace(None);
    };
    let pairs = defaults.as_object().filter(|object| object.repr() == ObjectRepr::Map);
    let Some(pairs) = pairs.and_then(DynObject::try_iter_pairs) else {
        return minijinja::functions::namespace(Some(defaults.into()));
    };
    let settled: Result<Vec<(Value, Value)>, Error> =
        pairs.map(|(key, value)| Ok((key, settled(state, &value)?.0))).collect();
    minijinja::functions::namespace(Some(Value::from_pairs(settled?).into()))
}

fn refused(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// What a walk through a value meets.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// Lists and dicts inside one another.
    depth: usize,
    num_values: usize,
    num_text_bytes: usize,
    /// Whether there are no namespaces, loops, macros or functions in it.
    is_plain: bool,
}

impl Extent {
    fn of_scalar(value: &Value) -> Self {
        let num_text_bytes = value.as_str().map_or(0, str::len);
        Self { depth: 0, num_values: 1, num_text_bytes, is_plain: true }
    }

    fn of_container() -> Self {
        Self { depth: 1, num_values: 1, num_text_bytes: 0, is_plain: true }
    }

    fn add(&mut self, inner: Self) -> Result<(), Error> {
        self.depth = self.depth.max(inner.depth + 1);
        self.num_values += inner.num_values;
        self.num_text_bytes += inner.num_text_bytes;
        self.is_plain &= inner.is_plain;
        if self.depth > MAX_DEPTH {
            return Err(refused("too many lists inside one another"));
        }
        if self.num_values > MAX_VALUES || self.num_text_bytes > MAX_TEXT_BYTES {
            return Err(ErrorKind::OutOfFuel.into());
        }
        Ok(())
    }
}

/// Lists of plain data by address, which nothing else gets while there is a weak reference.
#[derive(Debug, Default)]
struct KnownLists(HashMap<usize, (Weak<Vec<Value>>, Extent)>);

/// When the render's first check was.
#[derive(Debug)]
struct Beginning(Instant);

fn check_time(state: &mut State<'_, '_>) -> Result<(), Error> {
    let Beginning(beginning) = state.get_or_insert_extension_with(|| Beginning(Instant::now()));
    if beginning.elapsed() > MAX_TIME { Err(ErrorKind::OutOfFuel.into()) } else { Ok(()) }
}

/// Returns the settled form of a value, which is the value itself where it has no lazy lists.
fn settled(state: &mut State<'_, '_>, value: &Value) -> Result<(Value, Extent), Error> {
    if value.as_object().is_none() {
        return Ok((value.clone(), Extent::of_scalar(value)));
    }
    let fuel = state.fuel_levels().map_or(u64::MAX, |(_, remaining)| remaining);
    let known = std::mem::take(state.get_or_insert_extension_with(KnownLists::default));
    let visits = usize::try_from(fuel).unwrap_or(usize::MAX).saturating_mul(VISITS_PER_FUEL);
    let mut walk = Walk { known, num_left: visits };
    let walked = walk.settle(value, 0);
    let num_visited = visits - walk.num_left;
    *state.get_or_insert_extension_with(KnownLists::default) = walk.known;
    let (replaced, extent) = walked?;
    state.consume_fuel((num_visited / VISITS_PER_FUEL) as u64)?;
    Ok((replaced.unwrap_or_else(|| value.clone()), extent))
}

/// One walk through a value.
struct Walk {
    known: KnownLists,
    /// Visits that the fuel allows.
    num_left: usize,
}

impl Walk {
    /// Returns what is to be put in the place of a value with `depth` lists around it, if anything,
    /// and its extent.
    fn settle(&mut self, value: &Value, depth: usize) -> Result<(Option<Value>, Extent), Error> {
        self.visit(1)?;
        let Some(object) = value.as_object() else {
            return Ok((None, Extent::of_scalar(value)));
        };
        if depth > MAX_DEPTH {
            return Err(refused("too many lists inside one another"));
        }
        match object.repr() {
            ObjectRepr::Seq | ObjectRepr::Iterable => {
                if let Some(list) = value.downcast_object::<Vec<Value>>() {
                    return self.settle_list(&list, depth);
                }
                if value.is_tuple() {
                    let (items, extent) = self.settle_items(object, depth)?;
                    return Ok((items.map(|items| Value::from(Tuple::from(items))), extent));
                }
                let (list, extent) = self.made_list(object, depth)?;
                Ok((Some(list), extent))
            }
            ObjectRepr::Map => self.settle_map(object, depth),
            // Functions and macros, and whatever may come: nothing to walk through.
            ObjectRepr::Plain | _ => {
                Ok((None, Extent { is_plain: false, ..Extent::of_scalar(value) }))
            }
        }
    }

    fn settle_list(
        &mut self,
        list: &Arc<Vec<Value>>,
        depth: usize,
    ) -> Result<(Option<Value>, Extent), Error> {
        let address = Arc::as_ptr(list).addr();
        if let Some((_, extent)) = self.known.0.get(&address) {
            return Ok((None, *extent));
        }
        let mut extent = Extent::of_container();
        let mut settled: Option<Vec<Value>> = None;
        for (i, item) in list.iter().enumerate() {
            let (replaced, inner) = self.settle(item, depth + 1)?;
            extent.add(inner)?;
            if let Some(replaced) = replaced {
                settled.get_or_insert_with(|| list.to_vec())[i] = replaced;
            }
        }
        match settled {
            Some(items) => Ok((Some(self.new_list(items, extent)?), extent)),
            None => {
                self.remember(list, extent);
                Ok((None, extent))
            }
        }
    }

    /// Makes a list of a lazy one.
    fn made_list(&mut self, object: &DynObject, depth: usize) -> Result<(Value, Extent), Error> {
        let mut extent = Extent::of_container();
        let mut items = Vec::new();
        for item in object.try_iter().into_iter().flatten() {
            let (replaced, inner) = self.settle(&item, depth + 1)?;
            extent.add(inner)?;
            items.push(replaced.unwrap_or(item));
        }
        Ok((self.new_list(items, extent)?, extent))
    }

    /// Returns the items of a tuple if one of them is to be replaced.
    fn settle_items(
        &mut self,
        object: &DynObject,
        depth: usize,
    ) -> Result<(Option<Vec<Value>>, Extent), Error> {
        let mut extent = Extent::of_container();
        let mut is_replaced = false;
        let mut items = Vec::new();
        for item in object.try_iter().into_iter().flatten() {
            let (replaced, inner) = self.settle(&item, depth + 1)?;
            extent.add(inner)?;
            is_replaced |= replaced.is_some();
            items.push(replaced.unwrap_or(item));
        }
        Ok((is_replaced.then_some(items), extent))
    }

    fn settle_map(
        &mut self,
        object: &DynObject,
        depth: usize,
    ) -> Result<(Option<Value>, Extent), Error> {
        let is_dict = object.type_name() == dict_type();
        let mut extent = Extent { is_plain: is_dict, ..Extent::of_container() };
        let mut is_replaced = false;
        let mut pairs = Vec::new();
        for (key, value) in object.try_iter_pairs().into_iter().flatten() {
            let (_, key_extent) = self.settle(&key, depth + 1)?;
            extent.add(key_extent)?;
            let (replaced, inner) = self.settle(&value, depth + 1)?;
            extent.add(inner)?;
            is_replaced |= replaced.is_some();
            pairs.push((key, replaced.unwrap_or(value)));
        }
        // The others, namespaces and loops, live on as they are.
        let replaced = (is_dict && is_replaced).then(|| Value::from_pairs(pairs));
        Ok((replaced, extent))
    }

    fn new_list(&mut self, items: Vec<Value>, extent: Extent) -> Result<Value, Error> {
        self.visit(items.len().saturating_mul(VISITS_PER_NEW_ITEM))?;
        let list = Arc::new(items);
        self.remember(&list, extent);
        Ok(Value::from_dyn_object(list))
    }

    fn remember(&mut self, list: &Arc<Vec<Value>>, extent: Extent) {
        // What a namespace holds changes.
        if extent.is_plain {
            self.known.0.insert(Arc::as_ptr(list).addr(), (Arc::downgrade(list), extent));
        }
    }

    fn visit(&mut self, num_visits: usize) -> Result<(), Error> {
        let left = self.num_left.checked_sub(num_visits);
        self.num_left = left.ok_or(ErrorKind::OutOfFuel)?;
        Ok(())
    }
}

/// Returns the type of a dict, which the engine does not name.
fn dict_type() -> &'static str {
    static DICT: std::sync::LazyLock<&'static str> = std::sync::LazyLock::new(|| {
        let dict = Value::from_pairs([(0, 0)]);
        dict.as_object().map_or("", DynObject::type_name)
    });
    *DICT
}
