//! What can be set, and what can be asked: plain numbers that cross the library's boundary.

macro_rules! numbers {
    ($(#[$outer:meta])* $name:ident { $($(#[$doc:meta])* $field:ident = $default:expr,)* }) => {
        $(#[$outer])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl $name {
            /// The field of this name.
            #[allow(dead_code)]
            pub(crate) fn field(&mut self, name: &str) -> Option<&mut u64> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)*
                    _ => None,
                }
            }
        }
    };
}

numbers! {
    /// How the driver and its devices are.
    Config {
        /// Number of devices.
        devices = 1,
        /// What `cuDriverGetVersion` answers: 1000 × major + 10 × minor.
        version = 13000,
        /// Memory of each device in bytes. None of it costs anything before it is written.
        memory = 64 << 30,
        /// What `cuInit` answers.
        init_status = 0,
        /// How long `cuInit` takes.
        init_delay_ms = 0,
        /// How long making a context takes.
        retain_delay_ms = 0,
        /// How long each copy takes, whatever its size.
        copy_delay_us = 0,
        /// Bytes a second over the bus of a device, which its copies share; 0 is no limit.
        bandwidth = 0,
        /// The largest range that can be registered.
        register_max = u64::MAX,
        /// How many bytes can be registered in all.
        register_limit = u64::MAX,
        /// Not 0: device bytes are not kept, but counted and reduced to a [`crate::Digest`].
        discard = 0,
        /// The byte that device memory consists of before it is written.
        fill = 0xCD,
    }
}

numbers! {
    /// What happened since the last reset.
    Counts {
        /// Copies to a device from registered memory, those of batches included.
        pinned_copies = 0,
        /// Their bytes.
        pinned_bytes = 0,
        /// Copies to a device from ordinary memory, staged during the call.
        pageable_copies = 0,
        /// Their bytes.
        pageable_bytes = 0,
        /// Copies to the host.
        back_copies = 0,
        /// Their bytes.
        back_bytes = 0,
        /// Batched calls.
        batch_calls = 0,
        /// Copies in them.
        batch_copies = 0,
        /// Copies that ran, of any kind.
        executed_copies = 0,
        /// Bytes registered now.
        registered_bytes = 0,
        /// The most that ever were.
        registered_peak = 0,
        /// Device bytes allocated now, on all devices.
        allocated_bytes = 0,
        /// The most that ever were.
        allocated_peak = 0,
    }
}

numbers! {
    /// What was taken and not given back.
    Live {
        /// Device allocations.
        allocations = 0,
        /// Streams.
        streams = 0,
        /// Events.
        events = 0,
        /// Registered ranges.
        registrations = 0,
        /// Retains of primary contexts that were not released.
        retained = 0,
    }
}

impl Config {
    /// Reads `field=value,...`.
    pub(crate) fn parse(text: &str) -> Result<Config, String> {
        let mut config = Config::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| format!("`{part}` is not `field=value`"))?;
            let field = config
                .field(name.trim())
                .ok_or_else(|| format!("no setting is called `{name}`"))?;
            *field = value.trim().parse().map_err(|_| format!("`{value}` is not a number"))?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_name() {
        let config = Config::parse("devices=2,version=12040,discard=1").unwrap();
        let expected = Config { devices: 2, version: 12040, discard: 1, ..Config::default() };
        assert_eq!(config, expected);
        assert_eq!(Config::parse("").unwrap(), Config::default());
        for wrong in ["devices", "devices=two", "device=2"] {
            assert!(Config::parse(wrong).is_err(), "{wrong}");
        }
    }
}
