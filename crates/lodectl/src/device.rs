//! `lodectl device …`: the NVMe controllers of this machine and the drivers that have them.

use anyhow::{Result, anyhow};
use lode_vfio::VfioError;
use lode_vfio::sysfs::{Consent, Patience, PciFunction, Sysfs};
use serde::Serialize;

use crate::cli::DeviceCommand;
use crate::output::{Output, table};

#[derive(Serialize)]
struct FunctionView {
    address: String,
    vendor: String,
    device: String,
    /// `null` when no driver has it.
    driver: Option<String>,
    /// The IOMMU group; `null` where there is no IOMMU.
    group: Option<u32>,
    numa_node: Option<u32>,
    /// What it is used for, as far as the kernel's driver shows.
    uses: Vec<String>,
}

/// Runs on this machine; asks no server. Binding blocks for some seconds at most.
pub(crate) fn run(output: &Output, command: DeviceCommand) -> Result<()> {
    let sysfs = Sysfs::of_this_machine();
    let function = match command {
        DeviceCommand::List => return list(output, &sysfs),
        DeviceCommand::Bind {
            controller,
            even_in_use,
        } => {
            let consent = if even_in_use {
                Consent::EvenInUse
            } else {
                Consent::UnusedOnly
            };
            sysfs
                .bind(controller, consent, Patience::default())
                .map_err(advised)?
        }
        DeviceCommand::Unbind { controller } => sysfs.unbind(controller, Patience::default())?,
    };
    let view = FunctionView::new(&function, Vec::new());
    output.show(&view, |view| {
        let driver = view.driver.as_deref().unwrap_or("no driver");
        format!("{} is bound to {driver}", view.address)
    })
}

/// A refusal with the words that overrule it.
fn advised(error: VfioError) -> anyhow::Error {
    match error {
        VfioError::InUse { .. } => {
            anyhow!("{error}; --even-in-use takes it all the same, and its data may be lost")
        }
        error => error.into(),
    }
}

fn list(output: &Output, sysfs: &Sysfs) -> Result<()> {
    let mut views = Vec::new();
    for function in sysfs.nvme_functions()? {
        // Without the right to look at the disk nothing can be said about its content.
        let uses = sysfs
            .uses(function.address)
            .unwrap_or_else(|error| vec![format!("unknown: {error}")]);
        views.push(FunctionView::new(&function, uses));
    }
    output.show(&views, |views| {
        if views.is_empty() {
            return "no NVMe controller on this machine's PCI buses".to_owned();
        }
        table(
            &["address", "id", "driver", "group", "node", "used"],
            views.iter().map(FunctionView::row).collect(),
        )
    })
}

impl FunctionView {
    fn new(function: &PciFunction, uses: Vec<String>) -> Self {
        Self {
            address: function.address.to_string(),
            vendor: format!("{:04x}", function.vendor),
            device: format!("{:04x}", function.device),
            driver: function.driver.clone(),
            group: function.group,
            numa_node: function.numa_node,
            uses,
        }
    }

    fn row(&self) -> Vec<String> {
        let number = |number: Option<u32>| number.map_or("-".to_owned(), |n| n.to_string());
        let used = match self.uses.as_slice() {
            [] => "no".to_owned(),
            uses => uses.join("; "),
        };
        vec![
            self.address.clone(),
            format!("{}:{}", self.vendor, self.device),
            self.driver.as_deref().unwrap_or("-").to_owned(),
            number(self.group),
            number(self.numa_node),
            used,
        ]
    }
}
