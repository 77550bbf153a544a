<?php
// Makes the calls that it reads with PDO, in the mode that its argument names (calls.py says how they are written).

$options = match ($argv[1]) {
    'prepared' => [],
    'simple' => [PDO::ATTR_EMULATE_PREPARES => true],
    // Through PgBouncer, whose server connections do not know each other's statements.
    'pooled' => [PDO::PGSQL_ATTR_DISABLE_PREPARES => true],
};
$db = new PDO(getenv('DATABASE_URL'), options: $options);

function argument(string $text): string
{
    $value = substr($text, 2);
    // PDO has no arrays.
    return $text[0] === 'a' ? '{' . implode(',', array_map('json_encode', explode("\x1f", $value))) . '}' : $value;
}

while (($line = fgets(STDIN)) !== false) {
    if ($line === "\n") {
        continue;
    }
    $parts = explode("\t", rtrim($line, "\n"));
    try {
        $statement = $db->prepare(preg_replace('/\$\d/', '?', $parts[0]));
        $statement->execute(array_map('argument', array_slice($parts, 1)));
        $told = ['ok'];
        foreach ($statement->fetchAll(PDO::FETCH_NUM) as $row) {
            foreach ($row as $value) {
                $told[] = get_debug_type($value) . '=' . (is_bool($value) ? json_encode($value) : $value);
            }
        }
        echo implode("\t", $told), "\n";
    } catch (PDOException $error) {
        echo "error\t", $error->getCode(), "\n";
    }
}
