//! The memo of a pickle: values that it refers to again.

use std::collections::HashMap;

use super::value::Value;

/// Values by number. Writers count from 0, so a list does; any other number is kept apart.
#[derive(Default)]
pub(super) struct Memo {
    counted: Vec<Value>,
    others: HashMap<u32, Value>,
}

impl Memo {
    pub(super) fn length(&self) -> u32 {
        // Fits: there are fewer than bytes of the pickle.
        (self.counted.len() + self.others.len()) as u32
    }

    pub(super) fn put(&mut self, number: u32, value: Value) {
        let at = number as usize;
        if at == self.counted.len() {
            self.counted.push(value);
        } else if let Some(place) = self.counted.get_mut(at) {
            *place = value;
        } else {
            self.others.insert(number, value);
        }
    }

    pub(super) fn get(&self, number: u32) -> Option<Value> {
        let counted = self.counted.get(number as usize);
        counted.or_else(|| self.others.get(&number)).copied()
    }
}
