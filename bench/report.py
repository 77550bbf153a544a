"""x"""
import json
def write(bench, results, out):
    print(json.dumps(results, indent=1))
