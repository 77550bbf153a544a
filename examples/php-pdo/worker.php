<?php
// A worker: claims letters, prints them page by page, and sends each exactly once.
//
//     DATABASE_URL='pgsql:host=localhost;dbname=shop;user=me' php worker.php mailer-1

const LOST = ['QX001', 'QX003']; // Another worker has the task, or has finished it.
$stopping = false;
pcntl_async_signals(true);
pcntl_signal(SIGTERM, function () use (&$stopping) { $stopping = true; });

function sql(PDO $db, string $statement, array $arguments = []): array|false
{
    $prepared = $db->prepare($statement);
    $prepared->execute($arguments);
    return $prepared->columnCount() ? $prepared->fetch(PDO::FETCH_ASSOC) : false;
}

function handle(PDO $db, array $task, bool &$stopping): void
{
    $letter = json_decode($task['payload'], true, flags: JSON_THROW_ON_ERROR);
    $lease = [$task['id'], $task['token']];
    for ($page = 1; $page <= ($letter['pages'] ?? 1); $page++) {
        usleep(20_000); // The work, a piece at a time.
        $extend = "SELECT * FROM queue.extend(?, ?, progress => jsonb_build_object('page', ?::int))";
        if (sql($db, $extend, [...$lease, $page])['cancel_requested']) {
            sql($db, 'SELECT queue.confirm_cancel(?, ?)', $lease);
            return;
        }
        if ($stopping) {
            sql($db, 'SELECT queue.release(?, ?)', $lease);
            return;
        }
    }
    // What the work writes commits together with the task, or not at all.
    $db->beginTransaction();
    sql($db, 'INSERT INTO letters_sent (address) VALUES (?)', [$letter['to'] ?? null]);
    sql($db, 'SELECT queue.complete(?, ?)', $lease);
    $db->commit();
}

function report(PDO $db, array $task, Throwable $error): void
{
    try {
        sql($db, 'SELECT queue.fail(?, ?, ?)', [$task['id'], $task['token'], $error->getMessage()]);
    } catch (PDOException $refused) {
        if (!in_array($refused->getCode(), LOST, true)) {
            throw $refused;
        }
        fwrite(STDERR, "task {$task['id']}: {$refused->getMessage()}\n");
    }
}

$db = new PDO(getenv('DATABASE_URL'));
while (!$stopping) {
    $task = sql($db, 'SELECT * FROM queue.claim(worker => ?)', [$argv[1]]);
    if (!$task) {
        sql($db, "CALL queue.wait(timeout => '1 second')");
        continue;
    }
    try {
        handle($db, $task, $stopping);
    } catch (Throwable $error) {
        if ($db->inTransaction()) {
            $db->rollBack();
        }
        report($db, $task, $error);
    }
}
