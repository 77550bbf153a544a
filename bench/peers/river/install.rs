//! Makes River's tables, as its command migrate-up does.

use riverqueue::migrate::PostgresMigrator;
use riverqueue::sqlx::PgPool;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    PostgresMigrator::new(pool).migrate_up().await?;
    Ok(())
}
