//! `lodectl pool …`.

mod view;

use anyhow::Result;
use lode_api::Client;
use lode_api::client::Overwrite;

use crate::cli::PoolCommand;
use crate::output::Output;
use view::{ExportedView, PoolView};

pub(crate) async fn run(client: &Client, output: &Output, command: PoolCommand) -> Result<()> {
    let pool = match command {
        PoolCommand::List => return list(client, output).await,
        PoolCommand::Export { name } => {
            client.export_pool(&name).await?;
            let exported = ExportedView { exported: name };
            return output.show(&exported, ExportedView::line);
        }
        PoolCommand::Status { name } => client.pool(name.as_deref().unwrap_or_default()).await?,
        PoolCommand::Create {
            name,
            devices,
            overwrite,
        } => {
            let overwrite = if overwrite {
                Overwrite::Allowed
            } else {
                Overwrite::Refused
            };
            client.create_pool(&name, &devices, overwrite).await?
        }
        PoolCommand::Import { devices } => client.import_pool(&devices).await?,
    };
    output.show(&PoolView::from(pool), PoolView::lines)
}

async fn list(client: &Client, output: &Output) -> Result<()> {
    let pools = client.list_pools().await?;
    let views: Vec<_> = pools.into_iter().map(PoolView::from).collect();
    output.show(&views, |views| view::list(views))
}
